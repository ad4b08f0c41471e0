"""Runs go into the queue once, as arrays that the site accepts, whatever refuses or dies in between."""

import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from asking import code_of
from fake_slurm import fake
from fake_slurm.fake import Cluster
from slurm_cases import a_run, config, job_of
from submitit import SlurmExecutor

from daso_bench.runner.config.run_config import RunConfig
from daso_bench.runner.launch.slurm import job, queue, request, submit
from daso_bench.runner.records.run_directory import RunDirectory
from daso_bench.strategies.errors import ConfigError, MachineError

Runs = list[tuple[RunDirectory, RunConfig]]
SWEEP = ("-m", "launcher=slurm", "launcher.cpus_per_rank=1", "launcher.gpus_per_rank=0", "cluster=one_node")
TOO_MANY = "more than the site lets you submit at once; repeat it later"


def runs_of(count: int, folder: Path, **keys: Any) -> Runs:
    return [a_run(folder / "results", seed=seed, **keys) for seed in range(count)]


def put(runs: Runs, lines: list[str] | None = None) -> dict[str, str]:
    """Submit them; returns why runs were refused, by run id."""
    return submit.submit(runs, ([] if lines is None else lines).append)


def jobs_of(runs: Runs) -> list[str | None]:
    return [job_of(run) for run, _ in runs]


def runs_in(folder: Path) -> list[RunDirectory]:
    return [RunDirectory(path) for path in sorted((folder / "results" / "runs").glob("ddp-*"))]


def start(words: tuple[str, ...]) -> subprocess.Popen[bytes]:
    """The command in a process of its own."""
    command = [sys.executable, "-c", "from daso_bench.runner.cli.main import main; main()", *words]
    return subprocess.Popen(command, stdout=subprocess.DEVNULL, start_new_session=True)


def test_a_sweep_becomes_one_array_and_its_ids_are_written_down(cluster: Cluster, tmp_path: Path) -> None:
    env = cluster()
    runs, lines = runs_of(6, tmp_path, array_parallelism=4), list[str]()
    assert put(runs, lines) == {}
    jobs = fake.jobs(env)
    assert list(jobs) == jobs_of(runs) == [f"1_{index}" for index in range(6)]
    assert "#SBATCH --array=0-5%4" in jobs["1_0"]["script"].splitlines()
    (listed,) = (tmp_path / "results" / "runs" / submit.FOLDER).glob(f"daso-bench-*/{job.RUNS}")
    assert listed.read_text().split() == [run.run_id for run, _ in runs]
    assert {job["name"] for job in jobs.values()} == {listed.parent.name}
    for run, _ in runs:
        status = run.status()
        assert (status["status"], status["reason"]) == ("queued", None)
        assert status["job"]["name"] == listed.parent.name
        assert json.loads((run.path / request.CODE_FILE).read_text()) == request.code_state()
    assert "1 CPU a task" in lines[0]
    assert lines[-1] == "  submitted as job 1, 6 runs"


def test_runs_that_ask_for_different_things_are_different_jobs(cluster: Cluster, tmp_path: Path) -> None:
    env = cluster()
    small, large = runs_of(2, tmp_path), runs_of(1, tmp_path, ranks=(4, 4))
    mixed = [small[0], large[0], small[1]]
    assert put(mixed) == {}
    assert jobs_of(mixed) == ["1_0", "2", "1_1"]
    script = fake.jobs(env)["2"]["script"]
    assert "#SBATCH --ntasks-per-node=4" in script
    assert "--array" not in script


@pytest.mark.parametrize(
    ("most", "sizes"), [(None, [1000, 200]), (1, [1] * 1200), (0, [1] * 1200), (5000, [1200])]
)
def test_a_sweep_larger_than_an_array_is_cut(most: int | None, sizes: list[int]) -> None:
    """MaxArraySize is one more than the largest index; a site may allow no arrays at all (0)."""
    given = config(results=Path("/nowhere"))
    runs = [(RunDirectory(Path(f"/nowhere/r{number}")), given) for number in range(1200)]
    batches = [members for _, members in submit._batches(runs, most)]
    assert [len(members) for members in batches] == sizes
    assert [run for members in batches for run in members] == [run for run, _ in runs]


def test_what_the_site_lets_in_goes_in_and_the_rest_is_told(cluster: Cluster, tmp_path: Path) -> None:
    """Arrays of at most two elements, and a limit of submitted jobs."""
    env = cluster(max_submit=4, max_array_size=2)
    runs = runs_of(6, tmp_path)
    names = [run.run_id for run, _ in runs]
    assert put(runs) == dict.fromkeys(names[4:], TOO_MANY)
    assert jobs_of(runs) == ["1_0", "1_1", "2_0", "2_1", None, None]
    fake.change(env, max_submit=5)
    lines: list[str] = []
    assert put(runs, lines) == {names[5]: TOO_MANY}
    assert lines[0] == f"{names[0]}: in the queue already, as job 1_0"
    assert jobs_of(runs)[4:] == ["3", None]
    assert len(fake.jobs(env)) == 5


def test_a_sweep_that_sbatch_refuses_loses_nothing_and_says_why(
    cluster: Cluster, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    env = cluster()
    words = (*SWEEP, "seed=0,1,2")
    assert code_of(*words, "launcher.account=nosuch") == 3
    output = capsys.readouterr().out
    assert output.count("not submitted: ") == 3
    assert "sbatch: Batch job submission failed: Invalid account or account/partition combination" in output
    assert fake.jobs(env) == {}
    assert [run.status()["status"] for run in runs_in(tmp_path)] == ["queued"] * 3
    assert code_of(*words) == 0
    assert list(fake.jobs(env)) == ["1_0", "1_1", "1_2"]
    assert f"look: daso-bench status {tmp_path / 'results' / 'runs'}" in capsys.readouterr().out


def test_a_refusal_of_the_second_array_keeps_the_first(
    cluster: Cluster, tmp_path: Path, program: Callable[[str, str], Path]
) -> None:
    env = cluster(max_array_size=2)
    runs, once = runs_of(3, tmp_path), tmp_path / "once"
    real = shutil.which("sbatch")
    program(
        "sbatch",
        f'case "$1" in --version) exec {real} "$@";; esac\n'
        f"if [ -e {once} ]; then\n"
        'echo "sbatch: error: Batch job submission failed: Too busy" >&2; exit 1\n'
        f'fi\ntouch {once}; exec {real} "$@"',
    )
    assert put(runs) == {runs[2][0].run_id: "sbatch: Batch job submission failed: Too busy"}
    assert jobs_of(runs) == ["1_0", "1_1", None]
    once.unlink()
    assert put(runs) == {}
    assert list(fake.jobs(env)) == jobs_of(runs) == ["1_0", "1_1", "2"]


def test_a_death_after_sbatchs_yes_submits_nothing_twice(
    cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """squeue knows the array only some time later. The next submission notes the ids."""
    env = cluster(delay_s=1.5)
    monkeypatch.setattr(submit, "KNOWN_S", 20.0)
    runs = runs_of(3, tmp_path)
    original = SlurmExecutor._submit_command

    def dies(self: SlurmExecutor, command: str) -> Any:
        original(self, command)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(SlurmExecutor, "_submit_command", dies)
        with pytest.raises(KeyboardInterrupt):
            put(runs)
    assert jobs_of(runs) == [None] * 3
    lines: list[str] = []
    assert put(runs, lines) == {}
    assert lines == [
        f"{run.run_id}: in the queue already, as job 1_{seed}" for seed, (run, _) in enumerate(runs)
    ]
    assert list(fake.jobs(env)) == jobs_of(runs) == ["1_0", "1_1", "1_2"]


def test_two_submissions_of_one_study_at_once_of_which_one_is_killed_submit_each_run_once(
    cluster: Cluster, tmp_path: Path, program: Callable[[str, str], Path]
) -> None:
    """The first to get sbatch's yes is killed right after it; the second waits for the lock."""
    env = cluster()
    kill, killed = tmp_path / "kill", tmp_path / "killed"
    kill.touch()
    real = shutil.which("sbatch")
    program(
        "sbatch",
        f'{real} "$@" || exit 1\ncase "$1" in --version) exit 0;; esac\n'
        f"if mv {kill} {killed}; then kill -9 $PPID; fi",
    )
    words = (*SWEEP, "seed=0,1")
    both = [start(words) for _ in range(2)]
    assert sorted(process.wait(90) for process in both) == [-signal.SIGKILL, 0]
    assert list(fake.jobs(env)) == ["1_0", "1_1"]
    assert sorted(str(job_of(run)) for run in runs_in(tmp_path)) == ["1_0", "1_1"]


def test_finished_runs_are_left_out_and_cancelled_ones_go_in_again(
    cluster: Cluster, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    env = cluster()
    words = (*SWEEP, "seed=0,1,2")
    assert code_of(*words) == 0
    runs = runs_in(tmp_path)
    queue.cancel(["1"])
    runs[0].update(status="finished")
    assert code_of("cancel", str(runs[1].path)) == 0
    capsys.readouterr()
    assert code_of(*words) == 0
    assert f"skipped: finished already: {runs[0].path}" in capsys.readouterr().out
    assert list(fake.jobs(env)) == ["1_0", "1_1", "1_2", "2_0", "2_1"]
    assert not runs[1].cancel_file.exists()
    assert job_of(runs[1]) in ("2_0", "2_1")


def test_what_cannot_be_submitted_is_told_and_the_rest_goes_in(
    cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    env = cluster()
    runs = runs_of(2, tmp_path)
    nowhere = a_run(tmp_path / "results", ranks=(2,), gpus_per_rank="auto", partition="x")
    with pytest.raises(ConfigError, match=r"launcher\.partition=x"):
        put([runs[0], nowhere])
    assert fake.jobs(env) == {}
    with runs[0][0].lock():  # as by launcher.submit=false in an allocation
        runs[0][0].begin_attempt()
        refused = put(runs)
    assert "is being run" in refused[runs[0][0].run_id]
    assert jobs_of(runs) == [None, "1"]

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(submit, "write_json", full)
    (reason,) = put(runs_of(1, tmp_path / "full")).values()
    assert "No space left on device" in reason
    assert len(fake.jobs(env)) == 1
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(MachineError, match="command not found; is this a machine with Slurm"):
        put(runs_of(1, tmp_path / "without"))


def test_a_job_inherits_nothing_of_the_job_around_and_keys_win_over_a_users_defaults(
    cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    env = cluster()
    outer = {
        "SLURM_JOB_ID": "99", "SLURM_CPU_BIND": "quiet,mask_cpu:0x1", "SLURM_ARRAY_TASK_ID": "7",
        "SLURM_NTASKS": "1", "SBATCH_TIMELIMIT": "1", "SBATCH_PARTITION": "main",
        "SUBMITIT_EXECUTOR": "slurm",
    }  # fmt: skip
    inner = {"SLURM_CONF": "/etc/slurm.conf", "SBATCH_RESERVATION": "course", "MINE": "kept"}
    for name, value in (outer | inner).items():
        monkeypatch.setenv(name, value)
    put(runs_of(1, tmp_path, partition="gpu", python="singularity exec image python"))
    job = fake.jobs(env)["1"]
    assert job["environment"].keys() & outer.keys() == set()
    assert inner.items() <= job["environment"].items()
    options = job["options"]
    assert (options["time"], options["partition"], options["reservation"]) == ("10", "gpu", "course")
    assert "\nexec singularity exec image python -u -m daso_bench.runner.launch.slurm.job " in job["script"]
    assert os.environ["SLURM_JOB_ID"] == "99"  # this process keeps what it had


def test_a_snapshot_is_what_the_job_imports(cluster: Cluster, tmp_path: Path) -> None:
    env = cluster()
    odd = tmp_path / "my study's"
    put(runs_of(1, odd, snapshot=True, setup=("export FIRST=1",)))
    folder = odd / "results" / "runs" / submit.FOLDER
    (copy,) = folder.glob("code-*")
    lines = fake.jobs(env)["1"]["script"].splitlines()
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
