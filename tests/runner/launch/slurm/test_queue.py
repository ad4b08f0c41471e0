"""What Slurm is asked and how its answers read: by a fake (tests/fake_slurm), or by commands of a test."""

import math
import os
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from fake_slurm import fake
from fake_slurm.fake import Cluster

from daso_bench.runner.launch.slurm import queue
from daso_bench.runner.launch.slurm.queue import QueuedJob, SlurmError
from daso_bench.strategies.errors import MachineError

RECORDED = Path(__file__).parent / "recorded"
Program = Callable[[str, str], Path]


def submit(*options: str) -> str:
    command = ["sbatch", "--parsable", *options]
    done = subprocess.run(command, input="#!/bin/sh\n", capture_output=True, text=True, check=True)
    return done.stdout.strip()


def test_running_waiting_and_finished_jobs_are_told_in_one_call(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    env = cluster()
    odd, array, done = submit("--job-name=odd | name UserId=3"), submit("--array=0-3"), submit()
    fake.set_job(env, odd, state="RUNNING", reason="None", nodes="n[1-2]", left="1-00:29:00")
    fake.set_job(env, done, state="FAILED", reason="NonZeroExitCode", left="INVALID")
    monkeypatch.setenv("SQUEUE_STATES", "RUNNING")  # the user's own filter
    monkeypatch.setenv("SQUEUE_FORMAT", "%u")
    assert "SQUEUE_STATES" not in queue.call("sh", "-c", "env")
    before = len(fake.calls(env))
    jobs = queue.in_queue([odd, array, done, "999"])
    assert len(fake.calls(env)) == before + 1
    assert list(jobs) == [odd, *(f"{array}_{index}" for index in range(4)), done]
    assert jobs[odd] == QueuedJob(
        id=odd, name="odd | name UserId=3", state="RUNNING", nodes="n[1-2]", time_left_s=88_140.0
    )
    assert (jobs[f"{array}_3"].state, jobs[f"{array}_3"].reason) == ("PENDING", "Priority")
    assert jobs[f"{array}_3"].time_left_s == math.inf
    assert (jobs[done].reason, jobs[done].time_left_s) == ("NonZeroExitCode", 0.0), "over its limit"
    assert queue.in_queue(name="odd | name UserId=3").keys() == {odd}
    assert queue.in_queue(name="$(touch broken); touch broken") == {}
    assert not Path("broken").exists(), "no shell reads it"
    assert queue.job_of(f"{array}_2") == jobs[f"{array}_2"]
    assert queue.job_of("999") is None


def test_many_ids_are_asked_for_in_few_calls_and_an_array_in_one(cluster: Cluster) -> None:
    env = cluster()
    array = submit("--array=0-59")

    def asked(ids: list[str]) -> list[list[str]]:
        before = len(fake.calls(env))
        assert len(queue.in_queue(ids)) == 60
        return fake.calls(env)[before:]

    elements = [f"{array}_{index}" for index in range(60)]
    assert [call[-1] for call in asked(elements)] == [f"--jobs={array}"]
    calls = asked([*elements, *map(str, range(1000, 1450))])
    assert len(calls) == 3
    assert max(len(" ".join(call)) for call in calls) < 4000


def test_accounting_knows_how_a_job_ended(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    env = cluster()
    array = submit("--array=0-1")
    queue.cancel([f"{array}_1"])
    ended = queue.last_accounted(f"{array}_1")
    assert ended is not None
    assert ended.state.startswith("CANCELLED by ")
    assert (ended.status, ended.cause) == ("cancelled", None)
    assert queue.last_accounted("999") is None
    fake.change(env, accounting=False)
    assert queue.last_accounted(f"{array}_1") is None
    cluster(without=("sacct",))
    monkeypatch.setenv("PATH", os.environ["PATH"].split(os.pathsep)[0])
    assert queue.last_accounted(array) is None


def test_cancelled_jobs_end_and_one_that_is_over_or_unknown_is_no_error(
    cluster: Cluster, program: Program
) -> None:
    env = cluster()
    running, done = submit(), submit()
    fake.set_job(env, done, state="COMPLETED")
    queue.cancel([running, done, "999"])
    assert [job["state"] for job in fake.jobs(env).values()] == ["CANCELLED", "COMPLETED"]
    over = "echo 'scancel: error: Kill job error on job id 7: Job/step already completing or completed' >&2"
    program("scancel", f"{over}; exit 1")
    queue.cancel(["7"])
    denied = "echo 'scancel: error: Kill job error on job id 8: Access/permission denied' >&2"
    program("scancel", f"{over}; {denied}; exit 1")
    with pytest.raises(SlurmError, match="denied"):
        queue.cancel(["7", "8"])


def test_orders_that_slurm_refuses_are_errors_with_its_words(cluster: Cluster) -> None:
    env = cluster()
    fixed, free = submit("--no-requeue"), submit()
    fake.set_job(env, fixed, free, state="RUNNING")
    with pytest.raises(SlurmError, match="Requested operation is presently disabled"):
        queue.requeue(fixed)
    with pytest.raises(SlurmError, match="Invalid job id specified"):
        queue.requeue("999")
    queue.requeue(free)
    queue.requeue(free)  # already where it should go
    assert fake.jobs(env)[free]["state"] == "PENDING"


def test_the_nodes_the_limits_and_the_states_of_a_site_are_told(cluster: Cluster) -> None:
    env = cluster(cpus=16, gpus=4, down=["n3"], max_array_size=501, max_submit=20, kill_wait_s=7)
    assert queue.partition_of_nodes() == queue.partition_of_nodes("gpu") == [(16, 4)]
    assert queue.partition_of_nodes("nope") == []
    assert (queue.setting("MaxArraySize"), queue.setting("KillWait"), queue.max_submit()) == (501, 7, 20)
    assert queue.setting("NoSuch") is None
    assert (queue.node_state("n1"), queue.node_state("n3")) == ("idle", "down*")
    fake.change(env, accounting=False)
    assert queue.max_submit() is None


@pytest.mark.parametrize(
    ("gres", "gpus"),
    [
        ("(null)", 0),
        ("gpu:4", 4),
        ("gpu:a100:4(S:0-1),nvme:1", 4),
        ("gpu:tesla:2,gpu:kepler:3(S:0,2)", 5),
        ("nvme:1,shard:8", 0),
        ("gpu", 1),
    ],
)
def test_gpus_are_counted_in_every_form_of_a_gres(gres: str, gpus: int, program: Program) -> None:
    rows = f"main*\\03764\\037{gres}\\nmain*\\03764\\037{gres}\\nold\\0378\\037x"
    program("sinfo", f"printf '{rows}\\n'")
    assert queue.partition_of_nodes() == [(64, gpus)]


def test_the_smallest_of_the_limits_that_apply_counts(program: Program) -> None:
    script = """case "$*" in
    *assoc*) echo 'long|50|'; echo '|300|40';;
    *qos*) echo 'normal|5||'; echo 'long|70|30|';;
    esac"""
    program("sacctmgr", script)
    assert queue.max_submit() == 30


@pytest.mark.parametrize(
    ("state", "status", "cause"),
    [
        ("PENDING", "queued", None),
        ("REQUEUE_HOLD", "queued", "held"),
        ("RUNNING", "running", None),
        ("COMPLETING", "running", None),
        ("SUSPENDED", "running", "suspended"),
        ("COMPLETED", "finished", None),
        ("FAILED", "failed", None),
        ("NODE_FAIL", "failed", "node_fail"),
        ("OUT_OF_MEMORY", "failed", "out_of_memory"),
        ("PREEMPTED", "failed", "preempted"),
        ("TIMEOUT", "timed_out", "time limit"),
        ("CANCELLED by 0", "cancelled", None),
        ("BROKEN", "running", "BROKEN"),  # of a newer Slurm
    ],
)
def test_every_state_has_our_word_and_its_cause(state: str, status: str, cause: str | None) -> None:
    job = QueuedJob(id="1", state=state)
    assert (job.status, job.cause, job.live) == (status, cause, status in queue.LIVE)


def test_every_state_of_the_manual_is_known() -> None:
    """`man squeue` of 22.05, "JOB STATE CODES"."""
    states = (RECORDED / "job_states_22.05.txt").read_text().split()
    assert [state for state in states if QueuedJob(id="1", state=state).cause == state] == []


def test_a_command_that_is_missing_fails_or_hangs_is_an_error_with_its_words(
    program: Program, monkeypatch: pytest.MonkeyPatch
) -> None:
    missing = r"no-such-command: command not found; is this a machine with Slurm\?"
    with pytest.raises(MachineError, match=missing):
        queue.call("no-such-command")
    program("squeue", "echo 'squeue: error: Invalid user: x' >&2; exit 1")
    with pytest.raises(SlurmError, match=r"^squeue: error: Invalid user: x$"):
        queue.in_queue(["1"])
    program("sinfo", "exit 9")
    with pytest.raises(SlurmError, match="sinfo: exit code 9"):
        queue.partition_of_nodes()
    monkeypatch.setattr(queue, "TIMEOUT_S", 0.2)
    program("squeue", "exec sleep 20")
    began = time.monotonic()
    with pytest.raises(SlurmError, match=r"squeue: no answer within 0.2 s"):
        queue.in_queue(["1"])
    assert time.monotonic() - began < 10


def test_a_controller_that_does_not_answer_is_asked_three_times(cluster: Cluster) -> None:
    env = cluster()
    id = submit()
    fake.change(env, unreachable=2)
    assert set(queue.in_queue([id])) == {id}
    fake.change(env, unreachable=3)
    with pytest.raises(SlurmError, match="Unable to contact slurm controller"):
        queue.in_queue([id])
    assert len([call for call in fake.calls(env) if call[0] == "squeue"]) == 6
