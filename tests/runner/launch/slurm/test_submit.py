"""Runs go into the queue once, as arrays that the site accepts, whatever refuses or dies in between."""

import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from fake_slurm import fake
from fake_slurm.fake import Cluster
from slurm_cases import a_run, config
from submitit import SlurmExecutor

from daso_bench.runner.cli.main import main
from daso_bench.runner.config.run_config import RunConfig
from daso_bench.runner.launch.slurm import queue, request, submit
from daso_bench.runner.records.run_directory import RunDirectory
from daso_bench.strategies.errors import ConfigError, MachineError

Runs = list[tuple[RunDirectory, RunConfig]]
SWEEP = ("launcher.cpus_per_rank=1", "launcher.gpus_per_rank=0", "cluster=one_node")
NAME = "daso-bench-"


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queue, "PAUSE_S", 0.01)
    monkeypatch.setattr(submit, "KNOWN_S", 0.5)


def runs_of(count: int, folder: Path, **keys: Any) -> Runs:
    return [a_run(folder / "results", seed=seed, **keys) for seed in range(count)]


def put(runs: Runs) -> submit.Submitted:
    return submit.submit(runs, told.append)


told: list[str] = []


@pytest.fixture(autouse=True)
def silence() -> None:
    told.clear()


def arrays(env: dict[str, str]) -> dict[int, list[str]]:
    """Array or job -> the keys of its elements, as Slurm has them."""
    found: dict[int, list[str]] = {}
    for key, job in fake.jobs(env).items():
        found.setdefault(job["base"], []).append(key)
    return found


def listed(folder: Path, file: str) -> dict[str, list[str]]:
    """Job name -> the lines of a file in the array's folder."""
    return {
        path.parent.name: path.read_text().split()
        for path in folder.glob(f"results/runs/{submit.FOLDER}/{NAME}*/{file}")
    }


def job_of(run: RunDirectory) -> str | None:
    return (run.status().get("job") or {}).get("id")


def code_of(*arguments: str) -> int:
    with pytest.raises(SystemExit) as caught:
        main(arguments)
    assert isinstance(caught.value.code, int)
    return caught.value.code


def test_a_sweep_becomes_one_array_and_its_ids_are_written_down(cluster: Cluster, tmp_path: Path) -> None:
    env = cluster(hold=True)
    runs = runs_of(6, tmp_path, array_parallelism=4)
    done = put(runs)
    assert arrays(env) == {1: [f"1_{index}" for index in range(6)]}
    assert "#SBATCH --array=0-5%4" in fake.script(env, 1).splitlines()
    assert done.jobs == {run.run_id: f"1_{index}" for index, (run, _) in enumerate(runs)}
    assert (done.present, done.refused) == ({}, {})
    ((name, ids),) = listed(tmp_path, submit.IDS).items()
    assert ids == list(done.jobs.values())
    assert listed(tmp_path, submit.RUNS) == {name: list(done.jobs)}
    assert {job["name"] for job in fake.jobs(env).values()} == {name}
    for run, _ in runs:
        status = run.status()
        assert (status["status"], status["reason"], status["job"]["id"]) == (
            "queued",
            None,
            done.jobs[run.run_id],
        )
        assert status["job"]["name"] == name
        assert json.loads((run.path / request.CODE_FILE).read_text()) == request.code_state()
    assert told[-1] == "  submitted as job 1, 6 runs"
    assert "1 CPU a task" in told[0]


def test_one_run_is_a_job_and_no_array(cluster: Cluster, tmp_path: Path) -> None:
    env = cluster(hold=True)
    ((run, _),) = runs = runs_of(1, tmp_path)
    assert put(runs).jobs == {run.run_id: "1"}
    assert arrays(env) == {1: ["1"]}
    assert "--array" not in fake.script(env, 1)
    assert job_of(run) == "1"


def test_runs_that_ask_for_different_things_are_different_arrays(cluster: Cluster, tmp_path: Path) -> None:
    env = cluster(hold=True)
    small, large = runs_of(2, tmp_path), runs_of(2, tmp_path, ranks=(4, 4))
    mixed = [small[0], large[0], small[1], large[1]]
    done = put(mixed)
    assert arrays(env) == {1: ["1_0", "1_1"], 2: ["2_0", "2_1"]}
    assert [done.jobs[run.run_id] for run, _ in mixed] == ["1_0", "2_0", "1_1", "2_1"]
    assert "#SBATCH --ntasks-per-node=4" in fake.script(env, 2)


@pytest.mark.parametrize(("most", "sizes"), [(None, [1000, 200]), (1, [1] * 1200), (5000, [1200])])
def test_a_sweep_larger_than_an_array_is_cut(most: int | None, sizes: list[int]) -> None:
    """MaxArraySize is one more than the largest index."""
    given = config(results=Path("/nowhere"))
    runs = [(RunDirectory(Path(f"/nowhere/r{number}")), given) for number in range(1200)]
    batches = [members for _, members in submit._batches(runs, most)]
    assert [len(members) for members in batches] == sizes
    assert [run for members in batches for run in members] == [run for run, _ in runs]


@pytest.mark.parametrize(("most", "sizes"), [(5, [5, 2]), (0, [1] * 7)])
def test_a_sweep_larger_than_an_array_goes_in_as_several(
    cluster: Cluster, tmp_path: Path, most: int, sizes: list[int]
) -> None:
    """A site may also allow no arrays at all (MaxArraySize=0)."""
    env = cluster(hold=True, max_array_size=most)
    runs = runs_of(7, tmp_path)
    done = put(runs)
    assert [len(keys) for keys in arrays(env).values()] == sizes
    assert [job_of(run) for run, _ in runs] == list(done.jobs.values()) == list(fake.jobs(env))
    assert {run.run_id for run, _ in runs} == done.jobs.keys()


def test_what_the_site_lets_in_goes_in_and_the_rest_is_told(cluster: Cluster, tmp_path: Path) -> None:
    """A limit of submitted jobs."""
    env = cluster(hold=True, max_submit=4)
    runs = runs_of(6, tmp_path)
    names = [run.run_id for run, _ in runs]
    done = put(runs)
    assert list(done.jobs) == names[:4]
    assert done.refused == dict.fromkeys(
        names[4:], "more than the site lets you submit at once; repeat it later"
    )
    assert [job_of(run) for run, _ in runs[4:]] == [None, None]
    fake.change(env, max_submit=5)
    again = put(runs)
    assert list(again.present) == names[:4]
    assert list(again.jobs) == names[4:5]
    assert list(again.refused) == names[5:]
    assert len(fake.jobs(env)) == 5


def test_a_sweep_that_sbatch_refuses_loses_nothing_and_says_why(
    cluster: Cluster, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    env = cluster(hold=True, accounts=["root"])
    words = ("-m", "launcher=slurm", *SWEEP, "seed=0,1,2")
    assert code_of(*words, "launcher.account=nosuch") == 3
    shown = capsys.readouterr().out
    assert shown.count("not submitted: ") == 3
    assert "sbatch: Batch job submission failed: Invalid account or account/partition combination" in shown
    assert fake.jobs(env) == {}
    folders = sorted((tmp_path / "results" / "runs").glob("ddp-*"))
    assert [RunDirectory(path).status()["status"] for path in folders] == ["queued"] * 3
    assert code_of(*words) == 0
    assert arrays(env) == {1: ["1_0", "1_1", "1_2"]}
    assert f"look: daso-bench status {tmp_path / 'results' / 'runs'}" in capsys.readouterr().out


def test_a_refusal_of_the_second_array_keeps_the_first(cluster: Cluster, tmp_path: Path) -> None:
    env = cluster(hold=True, max_array_size=2)
    runs = runs_of(3, tmp_path)
    real = which("sbatch")
    once = tmp_path / "once"
    script = (
        f'case "$1" in --version) exec {real} "$@";; esac\n'
        f"if [ -e {once} ]; then\n"
        'echo "sbatch: error: Batch job submission failed: Too busy" >&2; exit 1\n'
        f'fi\ntouch {once}; exec {real} "$@"'
    )
    in_front("sbatch", script, tmp_path)
    done = put(runs)
    first, last = [run.run_id for run, _ in runs[:2]], runs[2][0].run_id
    assert list(done.jobs) == first
    assert done.refused == {last: "sbatch: Batch job submission failed: Too busy"}
    assert [job_of(run) for run, _ in runs] == ["1_0", "1_1", None]
    once.unlink()
    again = put(runs)
    assert list(again.present) == first
    assert list(again.jobs) == [last]
    assert arrays(env) == {1: ["1_0", "1_1"], 2: ["2"]}


@pytest.mark.parametrize("delay_s", [0.0, 1.5])
def test_a_death_after_sbatchs_yes_submits_nothing_twice(
    cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, delay_s: float
) -> None:
    """Also where squeue knows the array only some time later."""
    env = cluster(hold=True, delay_s=delay_s)
    monkeypatch.setattr(submit, "KNOWN_S", 20.0 if delay_s else 0.5)
    runs = runs_of(3, tmp_path)
    original = SlurmExecutor._submit_command

    def dies(self: SlurmExecutor, command: str) -> Any:
        original(self, command)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(SlurmExecutor, "_submit_command", dies)
        with pytest.raises(KeyboardInterrupt):
            put(runs)
    assert listed(tmp_path, submit.IDS) == {}
    assert [job_of(run) for run, _ in runs] == [None] * 3
    done = put(runs)
    assert done.present == {run.run_id: f"1_{index}" for index, (run, _) in enumerate(runs)}
    assert (done.jobs, done.refused) == ({}, {})
    assert arrays(env) == {1: ["1_0", "1_1", "1_2"]}
    assert [job_of(run) for run, _ in runs] == ["1_0", "1_1", "1_2"]  # for status and cancel


def test_a_command_repeated_at_once_submits_nothing_twice(
    cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its ids are written down, but a busy controller's squeue does not know them yet."""
    env = cluster(hold=True, delay_s=1.5)
    monkeypatch.setattr(submit, "KNOWN_S", 20.0)
    runs = runs_of(2, tmp_path)
    first = put(runs)
    again = put(runs)
    assert again.present == first.jobs
    assert arrays(env) == {1: ["1_0", "1_1"]}


def test_a_command_repeated_after_a_kill_submits_nothing_twice_and_keeps_the_ids(
    cluster: Cluster, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The first is killed right after sbatch's yes."""
    env = cluster(hold=True)
    real = which("sbatch")
    killing = tmp_path / "killing"
    killing.touch()
    script = (
        f'{real} "$@" || exit 1\ncase "$1" in --version) exit 0;; esac\n'
        f"if [ -e {killing} ]; then kill -9 $PPID; fi"
    )
    in_front("sbatch", script, tmp_path)
    words = ["-m", "launcher=slurm", *SWEEP, "seed=0,1"]
    assert start(words).wait(60) == -signal.SIGKILL
    killing.unlink()
    for _ in range(2):
        assert code_of(*words) == 0
        shown = capsys.readouterr().out
        assert "in the queue already, as job 1_0" in shown
        assert "in the queue already, as job 1_1" in shown
        assert arrays(env) == {1: ["1_0", "1_1"]}
    runs = [RunDirectory(path) for path in sorted((tmp_path / "results" / "runs").glob("ddp-*"))]
    assert sorted(str(job_of(run)) for run in runs) == ["1_0", "1_1"]


def test_two_submissions_of_one_study_at_once_submit_each_run_once(cluster: Cluster, tmp_path: Path) -> None:
    env = cluster(hold=True)
    both = [start(["-m", "launcher=slurm", *SWEEP, "seed=0,1,2"]) for _ in range(2)]
    assert [process.wait(90) for process in both] == [0, 0]
    assert len(fake.jobs(env)) == 3
    runs = [RunDirectory(path) for path in sorted((tmp_path / "results" / "runs").glob("ddp-*"))]
    assert sorted(str(job_of(run)) for run in runs) == ["1_0", "1_1", "1_2"]


def test_finished_runs_are_left_out_and_cancelled_ones_go_in_again(
    cluster: Cluster, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    env = cluster(hold=True)
    words = ("-m", "launcher=slurm", *SWEEP, "seed=0,1,2")
    assert code_of(*words) == 0
    runs = [RunDirectory(path) for path in sorted((tmp_path / "results" / "runs").glob("ddp-*-s*"))]
    queue.cancel(["1"])
    fake.wait(env)
    runs[0].update(status="finished")
    assert code_of("cancel", str(runs[1].path)) == 0
    capsys.readouterr()
    assert code_of(*words) == 0
    assert f"skipped: finished already: {runs[0].path}" in capsys.readouterr().out
    assert arrays(env) == {1: ["1_0", "1_1", "1_2"], 2: ["2_0", "2_1"]}
    assert not runs[1].cancel_file.exists()
    assert job_of(runs[1]) in ("2_0", "2_1")


def test_a_run_that_is_being_run_here_is_not_submitted(cluster: Cluster, tmp_path: Path) -> None:
    """As by launcher.submit=false in an allocation: it is the same run."""
    env = cluster(hold=True)
    runs = runs_of(2, tmp_path)
    with runs[0][0].lock():
        runs[0][0].begin_attempt()
        done = put(runs)
    assert "is being run" in done.refused[runs[0][0].run_id]
    assert list(done.jobs) == [runs[1][0].run_id]
    assert len(fake.jobs(env)) == 1


def test_nothing_goes_in_if_one_run_asks_for_what_is_not_there(cluster: Cluster, tmp_path: Path) -> None:
    env = cluster(hold=True)
    runs = [
        *runs_of(1, tmp_path),
        a_run(tmp_path / "results", ranks=(2,), gpus_per_rank="auto", partition="x"),
    ]
    with pytest.raises(ConfigError, match=r"launcher\.partition=x"):
        put(runs)
    assert fake.jobs(env) == {}


def test_a_folder_that_cannot_be_written_is_told_for_each_run(
    cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    env = cluster(hold=True)
    runs = runs_of(2, tmp_path)

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(submit, "record_code", full)
    done = put(runs)
    assert list(done.refused) == [run.run_id for run, _ in runs]
    assert all("No space left on device" in why for why in done.refused.values())
    assert fake.jobs(env) == {}


def test_without_slurm_the_sentence_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(MachineError, match="command not found; is this a machine with Slurm"):
        put(runs_of(1, tmp_path))


def test_a_job_inherits_nothing_of_the_job_around_the_command(
    cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    env = cluster(hold=True)
    outer = {
        "SLURM_JOB_ID": "99", "SLURM_CPU_BIND": "quiet,mask_cpu:0x1", "SLURM_ARRAY_TASK_ID": "7",
        "SLURM_ARRAY_JOB_ID": "98", "SLURM_NTASKS": "1", "SLURM_PROCID": "0", "SBATCH_TIMELIMIT": "1",
        "SUBMITIT_EXECUTOR": "slurm",
    }  # fmt: skip
    for name, value in (outer | {"SLURM_CONF": "/etc/slurm.conf", "MINE": "kept"}).items():
        monkeypatch.setenv(name, value)
    put(runs_of(2, tmp_path))
    seen = batch_environment(env, 1)
    assert seen.keys() & outer.keys() == set()
    assert (seen["SLURM_CONF"], seen["MINE"]) == ("/etc/slurm.conf", "kept")
    assert fake.jobs(env)["1_0"]["options"]["time"] == "10"
    assert os.environ["SLURM_JOB_ID"] == "99"  # this process keeps what it had


def test_a_users_default_does_not_override_what_a_key_says(
    cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    env = cluster(hold=True)
    monkeypatch.setenv("SBATCH_PARTITION", "main")
    monkeypatch.setenv("SBATCH_RESERVATION", "course")
    put(runs_of(1, tmp_path, partition="gpu"))
    options = fake.jobs(env)["1"]["options"]
    assert (options["partition"], options["reservation"]) == ("gpu", "course")


def test_a_snapshot_is_made_once_and_is_what_the_job_imports(cluster: Cluster, tmp_path: Path) -> None:
    env = cluster(hold=True)
    odd = tmp_path / "my study's"
    put(runs_of(1, odd, snapshot=True, setup=("export FIRST=1",)))
    put(runs_of(2, odd, snapshot=True))
    folder = odd / "results" / "runs" / submit.FOLDER
    (copy,) = folder.glob("code-*")
    made = copy.stat().st_mtime_ns
    lines = fake.script(env, 1).splitlines()
    assert lines[lines.index("# setup") + 1] == "export FIRST=1"
    setup = "\n".join(lines[lines.index("# setup") + 1 : lines.index("# command")])
    ask = "import daso_bench, os; print(daso_bench.__file__, os.environ['PYTHONPATH'], sep='|')"
    for before in ("", "/other"):
        environ = {**os.environ, "PYTHONPATH": before} if before else os.environ
        done = subprocess.run(
            ["bash", "-c", f"{setup}\n{shlex.join([sys.executable, '-c', ask])}"],
            capture_output=True, text=True, cwd=tmp_path, env=environ, check=True,
        )  # fmt: skip
        file, path = done.stdout.strip().split("|")
        assert Path(file) == copy / "daso_bench" / "__init__.py"
        assert path == str(copy) + (f":{before}" if before else "")
    put(runs_of(3, odd, snapshot=True))
    assert [one.stat().st_mtime_ns for one in folder.glob("code-*")] == [made]


def test_another_python_runs_the_job(cluster: Cluster, tmp_path: Path) -> None:
    env = cluster(hold=True)
    put(runs_of(1, tmp_path, python="singularity exec image python"))
    assert "\nexec singularity exec image python -u -m daso_bench.runner.launch.slurm.job " in fake.script(
        env, 1
    )


def batch_environment(env: dict[str, str], base: int) -> dict[str, str]:
    text = (Path(env["FAKE_SLURM_STATE"]) / "jobs" / str(base) / "environment").read_text()
    return dict(item.split("=", 1) for item in text.split("\0") if "=" in item)


def which(name: str) -> str:
    found = shutil.which(name)
    assert found is not None
    return found


def in_front(name: str, script: str, folder: Path) -> None:
    """A command that stands before Slurm's own; the fixture's PATH is undone at the end of the test."""
    bin = folder / "front"
    bin.mkdir(exist_ok=True)
    (bin / name).write_text(f"#!/bin/sh\n{script}\n")
    (bin / name).chmod(0o755)
    os.environ["PATH"] = f"{bin}{os.pathsep}{os.environ['PATH']}"


def start(words: list[str]) -> subprocess.Popen[bytes]:
    """The command in a process of its own."""
    command = [sys.executable, "-c", "from daso_bench.runner.cli.main import main; main()", *words]
    return subprocess.Popen(command, stdout=subprocess.DEVNULL, start_new_session=True)
