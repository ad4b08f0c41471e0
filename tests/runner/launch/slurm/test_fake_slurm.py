"""The fake behaves like Slurm where our launcher leans on it; texts were seen on Slurm 22.05.8."""

import itertools
import os
import re
import subprocess
import time
from pathlib import Path

import pytest
from fake_slurm import fake
from fake_slurm.fake import Cluster

every_version = pytest.mark.parametrize("version", fake.VERSIONS)
FAILED = "sbatch: error: Batch job submission failed: "
HELP = 'Try "sbatch --help" for more information\n'
POLICY = "Job violates accounting/QOS policy (job submit limit, user's size and/or time limits)"


def run(*words: str, stdin: str = "", **variables: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        words,
        input=stdin,
        env=os.environ | variables,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def submit(*options: str, script: str = "true", directives: str = "", **variables: str) -> str:
    done = run("sbatch", "--parsable", *options, stdin=f"#!/bin/sh\n{directives}\n{script}\n", **variables)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def variables_of(path: Path) -> dict[str, str]:
    return dict(line.split("=", 1) for line in path.read_text().splitlines() if "=" in line)


@pytest.mark.parametrize(
    ("options", "code", "text"),
    [
        (
            "--bogus=1",
            255,
            "sbatch: unrecognized option '--bogus=1'\nTry \"sbatch --help\" for more information\n",
        ),
        ("-Y", 255, f"sbatch: invalid option -- 'Y'\n{HELP}"),
        ("--time=abc", 255, "sbatch: error: Invalid --time specification\n"),
        ("--array=5-", 1, f"{FAILED}Invalid job array specification\n"),
        ("--array=0-1001", 1, f"{FAILED}Invalid job array specification\n"),
        ("--nodes=0", 1, f"{FAILED}Node count specification invalid\n"),
        ("--signal=FOO@1", 255, "sbatch: error: Invalid --signal specification\n"),
        ("--mem=lots", 255, "sbatch: error: Invalid --mem specification\n"),
        ("--cpus-per-task=0", 1, 'sbatch: error: Invalid numeric value "0" for --cpus-per-task.\n'),
        ("--open-mode=x", 255, "sbatch: error: Invalid --open-mode specification\n"),
        ("--gpus-per-node=9", 1, f"{FAILED}Requested node configuration is not available\n"),
        ("--gres=foo:1", 1, "sbatch: error: Invalid generic resource (gres) specification\n"),
        (
            "--partition=nope",
            1,
            f"sbatch: error: invalid partition specified: nope\n{FAILED}Invalid partition name specified\n",
        ),
    ],
)
def test_what_slurm_refuses_is_refused_in_its_words(
    cluster: Cluster, options: str, code: int, text: str, tmp_path: Path
) -> None:
    cluster("22.05")
    on_the_line = run("sbatch", options, "--wrap", "true")
    (tmp_path / "job.sh").write_text(f"#!/bin/sh\n\n# a comment\n#SBATCH {options}\ntrue\n")
    in_the_file = run("sbatch", "job.sh")
    assert (on_the_line.returncode, on_the_line.stderr, on_the_line.stdout) == (code, text, "")
    assert (in_the_file.returncode, in_the_file.stderr) == (code, text)


def test_a_batch_file_is_read_as_slurm_reads_it(cluster: Cluster, tmp_path: Path) -> None:
    env = cluster()
    directives = "#SBATCH --job-name=file --nodes=2\n#SBATCH --time=5 # five\necho x\n#SBATCH --nodes=3"
    (tmp_path / "job.sh").write_text(f"#!/bin/sh\n{directives}\necho $* > words\n")
    done = run(
        "sbatch", "--time=7", "job.sh", "--nodes=4", "more", SBATCH_JOB_NAME="variable", SBATCH_TIMELIMIT="6"
    )
    assert done.stdout == "Submitted batch job 1\n"
    fake.wait(env)
    assert (tmp_path / "words").read_text() == "--nodes=4 more\n"
    options = fake.jobs(env)["1"]["options"]
    assert (options["nodes"], options["time"], options["job-name"]) == ("2", "7", "variable")
    assert "echo x" in fake.script(env, 1)
    assert "Unable to open file none.sh" in run("sbatch", "none.sh").stderr
    (tmp_path / "job.sh").write_text("true\n")
    assert "This does not look like a batch script" in run("sbatch", "job.sh").stderr


@every_version
def test_a_batch_script_finds_what_slurm_tells_it(cluster: Cluster, version: str, tmp_path: Path) -> None:
    env = cluster(version)
    options = "--nodes=2 --ntasks-per-node=2 --cpus-per-task=1 --gpus-per-node=2 --mem=1G --time=10"
    submit(*options.split(), "--open-mode=append", "--job-name=envs", script="env > batch")
    fake.wait(env)
    found = variables_of(tmp_path / "batch")
    expected = {
        "SLURM_JOB_ID": "1", "SLURM_JOB_NAME": "envs", "SLURM_JOB_NODELIST": "n[1-2]",
        "SLURM_JOB_NUM_NODES": "2",
        "SLURM_NTASKS": "4", "SLURM_NTASKS_PER_NODE": "2", "SLURM_TASKS_PER_NODE": "2(x2)",
        "SLURM_CPUS_PER_TASK": "1", "SLURM_JOB_CPUS_PER_NODE": "2(x2)", "SLURM_CPUS_ON_NODE": "2",
        "SLURM_MEM_PER_NODE": "1024", "SLURM_GPUS_PER_NODE": "2", "CUDA_VISIBLE_DEVICES": "0,1",
        "SLURM_OPEN_MODE": "a", "SLURMD_NODENAME": "n1", "SLURM_SUBMIT_DIR": str(tmp_path),
    }  # fmt: skip
    assert found == found | expected
    at = tuple(map(int, version.split(".")))
    assert ("SLURM_JOB_END_TIME" in found) == (at >= (23, 2))
    assert ("SLURM_TRES_PER_TASK" in found) == (at >= (23, 11))
    assert ("SLURM_NODE_ALIASES" in found) == (at < (23, 11))
    assert "SLURM_RESTART_COUNT" not in found


def test_every_task_finds_its_place(cluster: Cluster, tmp_path: Path) -> None:
    env = cluster()
    submit("--nodes=2", "--ntasks-per-node=2", script="srun sh -c 'env > task$SLURM_PROCID'")
    fake.wait(env)
    names = ("NODEID", "LOCALID", "GTIDS", "STEP_NUM_TASKS", "STEP_ID", "STEP_NODELIST")
    found = [variables_of(tmp_path / f"task{rank}") for rank in range(4)]
    rows = [(task["SLURMD_NODENAME"], *(task[f"SLURM_{name}"] for name in names)) for task in found]
    assert rows == [
        ("n1", "0", "0", "0,1", "4", "0", "n[1-2]"),
        ("n1", "0", "1", "0,1", "4", "0", "n[1-2]"),
        ("n2", "1", "0", "2,3", "4", "0", "n[1-2]"),
        ("n2", "1", "1", "2,3", "4", "0", "n[1-2]"),
    ]


@pytest.mark.parametrize(
    ("version", "variable", "inherited"),
    [
        ("21.08", "SLURM_CPUS_PER_TASK", 4),
        ("22.05", "SLURM_CPUS_PER_TASK", None),
        ("22.05", "SRUN_CPUS_PER_TASK", 4),
        ("23.11", "SLURM_CPUS_PER_TASK", 4),
        ("24.11", "SLURM_CPUS_PER_TASK", 4),
        ("25.11", "SLURM_CPUS_PER_TASK", 4),
    ],
)
def test_the_cores_of_a_task_are_inherited_by_the_rule_of_the_version(
    cluster: Cluster, version: str, variable: str, inherited: int | None
) -> None:
    env = cluster(version)
    export = "" if variable == "SLURM_CPUS_PER_TASK" else f"export {variable}=$SLURM_CPUS_PER_TASK\n"
    submit("--cpus-per-task=4", script=f"{export}srun true\nsrun --cpus-per-task=2 true")
    steps = fake.wait(env)["1"]["steps"]
    assert (steps["0"]["cpus_per_task"], steps["1"]["cpus_per_task"]) == (inherited, 2)


@pytest.mark.parametrize(
    ("options", "shown"), [("--gpus-per-task=1", ["0", "1"]), ("--gpus-per-node=2", ["0,1"] * 2)]
)
def test_gpus_per_task_gives_each_task_its_own(
    cluster: Cluster, options: str, shown: list[str], tmp_path: Path
) -> None:
    env = cluster()
    submit(
        options, "--ntasks-per-node=2", script="srun sh -c 'echo $CUDA_VISIBLE_DEVICES > gpu$SLURM_LOCALID'"
    )
    fake.wait(env)
    assert [(tmp_path / f"gpu{local}").read_text().strip() for local in range(2)] == shown


@pytest.mark.parametrize(("version", "prefix"), [("22.05", "launch/slurm: _step_signal: "), ("23.11", "")])
def test_a_task_that_fails_ends_its_step(cluster: Cluster, version: str, prefix: str, tmp_path: Path) -> None:
    env = cluster(version)
    task = "if [ $SLURM_PROCID = 2 ]; then sleep 1; exit 7; fi; exec sleep 30"
    submit(
        "--nodes=2", "--ntasks-per-node=2", "--output=log",
        script=f"srun --kill-on-bad-exit=1 sh -c '{task}'\necho code $?",
    )  # fmt: skip
    fake.wait(env)
    log = (tmp_path / "log").read_text()
    assert "srun: error: n2: task 2: Exited with exit code 7\n" in log
    assert f"srun: {prefix}Terminating StepId=1.0\n" in log
    # Together, or one after the other, as their ends are seen.
    assert re.search(r"^srun: error: n1: tasks? [01](-1)?: Terminated$", log, re.MULTILINE)
    assert "code 143\n" in log


def test_a_task_that_is_killed_is_named_and_the_others_go_on(cluster: Cluster, tmp_path: Path) -> None:
    env = cluster()
    task = "[ $SLURM_PROCID = 1 ] && kill -9 $$; echo on"
    submit("--ntasks=2", "--output=log", script=f"srun --label sh -c '{task}'\necho code $?")
    fake.wait(env)
    log = (tmp_path / "log").read_text()
    assert "srun: error: n1: task 1: Killed\n" in log
    assert "0: on\n" in log
    assert "code 137\n" in log


def test_a_signal_to_srun_reaches_its_tasks(cluster: Cluster, tmp_path: Path) -> None:
    env = cluster()
    (tmp_path / "task.sh").write_text("trap 'echo got; exit 5' USR1\ntouch ready\nsleep 20 & wait\n")
    script = (
        "srun sh task.sh & step=$!\nwhile [ ! -e ready ]; do sleep 0.1; done; kill -USR1 $step; wait $step"
    )
    submit("--output=log", script=f"{script}; echo code $?")
    fake.wait(env)
    assert (
        (tmp_path / "log")
        .read_text()
        .startswith("got\nsrun: error: n1: task 0: Exited with exit code 5\ncode 5\n")
    )


def test_the_warning_comes_before_the_time_limit(cluster: Cluster, tmp_path: Path) -> None:
    env = cluster(minute_s=1.5)
    script = "trap 'echo warned' USR1\nfor i in $(seq 60); do sleep 0.1; done\n"
    submit("--time=1", "--signal=B:USR1@30", "--output=log", script=script)
    job = fake.wait(env)["1"]
    assert (job["state"], job["reason"]) == ("TIMEOUT", "TimeLimit")
    log = (tmp_path / "log").read_text()
    assert log.startswith("warned\n")
    assert "*** JOB 1 ON n1 CANCELLED AT" in log
    assert "DUE TO TIME LIMIT ***" in log


def test_a_job_that_asks_for_it_comes_back_with_a_restart_count(cluster: Cluster, tmp_path: Path) -> None:
    env = cluster()
    again = 'test -n "$SLURM_RESTART_COUNT" || scontrol requeue $SLURM_JOB_ID'
    script = f"echo run ${{SLURM_RESTART_COUNT:-0}}\n{again}\nsleep 1"
    submit("--requeue", "--output=log", "--open-mode=append", script=script)
    job = fake.wait(env)["1"]
    assert (job["state"], job["restarts"]) == ("COMPLETED", 1)
    assert [attempt["state"] for attempt in job["attempts"]] == ["REQUEUED", "COMPLETED"]
    lines = (tmp_path / "log").read_text().splitlines()
    assert [line for line in lines if line.startswith("run")] == ["run 0", "run 1"]


@pytest.mark.parametrize(("requeue", "state"), [("--requeue", "COMPLETED"), ("--no-requeue", None)])
def test_preemption_and_a_lost_node_bring_back_what_may_come_back(
    cluster: Cluster, requeue: str, state: str | None
) -> None:
    env = cluster()
    script = 'test -n "$SLURM_RESTART_COUNT" || exec sleep 30'
    first, second = (
        submit(requeue, "--exclude=n9", script=script),
        submit(requeue, "--nodes=2", script=script),
    )
    end = time.monotonic() + 60
    while time.monotonic() < end and not all(job["batch"] for job in fake.jobs(env).values()):
        time.sleep(0.05)
    fake.preempt(env, first)
    fake.fail_node(env, "n2")
    found = fake.wait(env)
    assert found[first]["state"] == (state or "PREEMPTED")
    assert found[second]["state"] == (state or "NODE_FAIL")
    assert "n2" not in found[second]["nodes"] or state is None


def test_an_array_runs_so_many_elements_at_once(cluster: Cluster, tmp_path: Path) -> None:
    env = cluster()
    script = "echo $SLURM_ARRAY_TASK_ID $SLURM_ARRAY_TASK_COUNT $SLURM_ARRAY_TASK_MAX"
    base = submit("--array=0-4:2%1", "--output=%A_%2a_%x.log", "--job-name=j", script=script)
    found = fake.wait(env)
    assert [(tmp_path / f"{base}_0{index}_j.log").read_text() for index in (0, 2, 4)] == [
        "0 3 4\n",
        "2 3 4\n",
        "4 3 4\n",
    ]
    # Each element has a job id of its own, the last one that of the array.
    assert sorted(job["id"] for job in found.values()) == [1, 2, 3]
    spans = sorted((job["start"], job["end"]) for job in found.values())
    assert all(before[1] <= after[0] for before, after in itertools.pairwise(spans))


def test_more_jobs_than_the_site_allows_are_refused_whole(cluster: Cluster) -> None:
    env = cluster(max_submit=3, hold=True)
    submit("--array=0-1")
    done = run("sbatch", "--array=0-1", "--wrap", "true")
    assert (done.returncode, done.stderr) == (
        1,
        f"sbatch: error: QOSMaxSubmitJobPerUserLimit\n{FAILED}{POLICY}\n",
    )
    assert len(fake.jobs(env)) == 2
    fake.release(env)
    fake.wait(env, "COMPLETED")


def test_a_held_cluster_starts_nothing_until_it_is_released(cluster: Cluster) -> None:
    env = cluster(hold=True)
    submit()
    time.sleep(0.3)
    assert fake.jobs(env)["1"]["state"] == "PENDING"
    fake.release(env)
    fake.wait(env, "COMPLETED")


@pytest.mark.parametrize(("version", "made"), [("22.05", False), ("23.11", True)])
def test_folders_of_logs_are_made_from_23_02_on(
    cluster: Cluster, version: str, made: bool, tmp_path: Path
) -> None:
    env = cluster(version)
    submit("--output=logs/%j/out", script="echo hello")
    assert fake.wait(env)["1"]["state"] == ("COMPLETED" if made else "FAILED")
    assert (tmp_path / "logs/1/out").exists() == made


def test_commands_at_the_same_time_lose_nothing(cluster: Cluster) -> None:
    env = cluster(nodes=4)
    running = [
        subprocess.Popen(["sbatch", "--parsable", "--wrap", "exit 0"], stdout=subprocess.PIPE, text=True)
        for _ in range(12)
    ]
    ids = sorted(int(process.communicate()[0]) for process in running)
    assert ids == list(range(1, 13))
    assert len(fake.wait(env, "COMPLETED")) == 12


def test_what_a_job_started_is_gone_when_it_is_cancelled(cluster: Cluster, tmp_path: Path) -> None:
    env = cluster()
    (tmp_path / "task.sh").write_text("trap '' TERM\necho $$ > pid$SLURM_PROCID\nexec sleep 30\n")
    id = submit("--ntasks=2", script="srun sh task.sh")
    end = time.monotonic() + 60
    while time.monotonic() < end and len(list(tmp_path.glob("pid?"))) < 2:
        time.sleep(0.05)
    assert run("scancel", id).returncode == 0
    assert fake.wait(env)[id]["state"] == "CANCELLED"
    for path in tmp_path.glob("pid?"):
        stat = Path(f"/proc/{path.read_text().strip()}/stat")
        assert not stat.exists() or stat.read_text().split()[2] == "Z"


def test_a_command_that_the_site_lacks_is_not_there(cluster: Cluster) -> None:
    env = cluster(without=("sacct",))
    assert not (Path(env["PATH"].split(os.pathsep)[0]) / "sacct").exists()
    with pytest.raises(ValueError, match="unknown settings"):
        cluster(nonsense=1)
