"""The fake behaves like Slurm where our launcher leans on it; texts were seen on Slurm 22.05.8."""

import itertools
import os
import subprocess
import time
from pathlib import Path

import pytest
from fake_slurm import fake
from fake_slurm.fake import Cluster

FAILED = "sbatch: error: Batch job submission failed: "
HELP = 'Try "sbatch --help" for more information\n'
POLICY = "Job violates accounting/QOS policy (job submit limit, user's size and/or time limits)"


def run(*words: str, stdin: str = "", **variables: str) -> subprocess.CompletedProcess[str]:
    environ = os.environ | variables
    return subprocess.run(words, input=stdin, env=environ, capture_output=True, text=True, check=False)


def submit(*options: str, script: str = "true") -> str:
    done = run("sbatch", "--parsable", *options, stdin=f"#!/bin/sh\n{script}\n")
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.mark.parametrize(
    ("options", "code", "text"),
    [
        ("--bogus=1", 255, f"sbatch: unrecognized option '--bogus=1'\n{HELP}"),
        ("--time=abc", 255, "sbatch: error: Invalid --time specification\n"),
        ("--array=5-", 1, f"{FAILED}Invalid job array specification\n"),
        ("--array=0-1001", 1, f"{FAILED}Invalid job array specification\n"),
        ("--nodes=0", 1, f"{FAILED}Node count specification invalid\n"),
        ("--cpus-per-task=0", 1, 'sbatch: error: Invalid numeric value "0" for --cpus-per-task.\n'),
        ("--gpus-per-node=9", 1, f"{FAILED}Requested node configuration is not available\n"),
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
    (tmp_path / "job.sh").write_text(f"#!/bin/sh\n\n# a comment\n#SBATCH {options}\ntrue\n")
    for done in (run("sbatch", options, "--wrap", "true"), run("sbatch", "job.sh")):
        assert (done.returncode, done.stderr, done.stdout) == (code, text, "")


def test_more_jobs_than_the_site_allows_are_refused_whole(cluster: Cluster) -> None:
    env = cluster(max_submit=3, hold=True)
    submit("--array=0-1")
    done = run("sbatch", "--array=0-1", "--wrap", "true")
    text = f"sbatch: error: QOSMaxSubmitJobPerUserLimit\n{FAILED}{POLICY}\n"
    assert (done.returncode, done.stderr, len(fake.jobs(env))) == (1, text, 2)


def test_a_batch_file_is_read_as_slurm_reads_it(cluster: Cluster, tmp_path: Path) -> None:
    env = cluster()
    directives = "#SBATCH --job-name=file --nodes=2\n#SBATCH --time=5 # five\necho x\n#SBATCH --nodes=3"
    (tmp_path / "job.sh").write_text(f"#!/bin/sh\n{directives}\necho $* > words\n")
    variables = {"SBATCH_JOB_NAME": "variable", "SBATCH_TIMELIMIT": "6"}
    done = run("sbatch", "--time=7", "job.sh", "--nodes=4", "more", **variables)
    assert done.stdout == "Submitted batch job 1\n"
    fake.wait(env)
    assert (tmp_path / "words").read_text() == "--nodes=4 more\n"
    options = fake.jobs(env)["1"]["options"]
    assert (options["nodes"], options["time"], options["job-name"]) == ("2", "7", "variable")


@pytest.mark.parametrize("version", fake.VERSIONS)
def test_a_batch_script_finds_what_slurm_tells_it(cluster: Cluster, version: str, tmp_path: Path) -> None:
    env = cluster(version)
    options = "--nodes=2 --ntasks-per-node=2 --cpus-per-task=1 --gpus-per-node=2 --mem=1G --time=10"
    submit(*options.split(), "--open-mode=append", "--job-name=envs", script="env > batch")
    fake.wait(env)
    lines = (tmp_path / "batch").read_text().splitlines()
    found = dict(line.split("=", 1) for line in lines if "=" in line)
    expected = {
        "SLURM_JOB_ID": "1", "SLURM_JOB_NAME": "envs", "SLURM_JOB_NODELIST": "n[1-2]",
        "SLURM_NTASKS": "4", "SLURM_TASKS_PER_NODE": "2(x2)", "SLURM_CPUS_PER_TASK": "1",
        "SLURM_MEM_PER_NODE": "1024", "SLURM_GPUS_PER_NODE": "2", "CUDA_VISIBLE_DEVICES": "0,1",
        "SLURM_SUBMIT_DIR": str(tmp_path),
    }  # fmt: skip
    assert found == found | expected
    assert ("SLURM_TRES_PER_TASK" in found) == (tuple(map(int, version.split("."))) >= (23, 11))
    assert "SLURM_RESTART_COUNT" not in found


def test_a_job_that_is_requeued_comes_back_with_a_restart_count(cluster: Cluster, tmp_path: Path) -> None:
    env = cluster()
    again = 'test -n "$SLURM_RESTART_COUNT" || scontrol requeue $SLURM_JOB_ID'
    submit("--output=log", "--open-mode=append", script=f"echo run $SLURM_RESTART_COUNT\n{again}\nsleep 1")
    job = fake.wait(env)["1"]
    assert (job["state"], job["restarts"]) == ("COMPLETED", 1)
    assert [attempt["state"] for attempt in job["attempts"]] == ["REQUEUED", "COMPLETED"]
    assert (tmp_path / "log").read_text().splitlines() == ["run", "run 1"]


def test_an_array_runs_so_many_elements_at_once(cluster: Cluster, tmp_path: Path) -> None:
    env = cluster()
    script = "echo $SLURM_ARRAY_TASK_ID $SLURM_ARRAY_TASK_COUNT"
    base = submit("--array=0-4:2%1", "--output=%A_%2a_%x.log", "--job-name=j", script=script)
    jobs = fake.wait(env).values()
    logs = [(tmp_path / f"{base}_0{index}_j.log").read_text() for index in (0, 2, 4)]
    assert logs == ["0 3\n", "2 3\n", "4 3\n"]
    # Each element has a job id of its own, the last one that of the array.
    assert sorted(job["id"] for job in jobs) == [1, 2, 3]
    spans = sorted((job["start"], job["end"]) for job in jobs)
    assert all(before[1] <= after[0] for before, after in itertools.pairwise(spans))


def test_commands_at_the_same_time_lose_nothing(cluster: Cluster) -> None:
    env = cluster(nodes=4)
    command = ["sbatch", "--parsable", "--wrap", "exit 0"]
    running = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(12)]
    assert sorted(int(process.communicate()[0]) for process in running) == list(range(1, 13))
    assert len(fake.wait(env, "COMPLETED")) == 12


def test_what_a_job_started_is_gone_when_it_is_cancelled(cluster: Cluster, tmp_path: Path) -> None:
    env = cluster()
    id = submit(script="trap '' TERM\nsh -c 'echo $$ > pid; exec sleep 30' & wait; sleep 30")
    deadline = time.monotonic() + 60
    while not (tmp_path / "pid").exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    assert run("scancel", id).returncode == 0
    assert fake.wait(env)[id]["state"] == "CANCELLED"
    stat = Path(f"/proc/{(tmp_path / 'pid').read_text().strip()}/stat")
    assert not stat.exists() or stat.read_text().split()[2] == "Z"


def test_a_command_that_the_site_lacks_is_not_there(cluster: Cluster) -> None:
    env = cluster(without=("sacct",))
    assert not (Path(env["PATH"].split(os.pathsep)[0]) / "sacct").exists()
    with pytest.raises(ValueError, match="unknown settings"):
        cluster(nonsense=1)
