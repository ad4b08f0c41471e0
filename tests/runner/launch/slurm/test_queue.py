"""What Slurm is asked and how its answers read, in every version (tests/fake_slurm) and as recorded."""

import math
import os
import subprocess
import time
from pathlib import Path

import pytest
from fake_slurm import fake
from fake_slurm.fake import Cluster

from daso_bench.runner.launch.slurm import queue
from daso_bench.runner.launch.slurm.queue import Limits, NodeKind, QueuedJob, SlurmError, Words
from daso_bench.strategies.errors import MachineError

RECORDED = Path(__file__).parent / "recorded"
every_version = pytest.mark.parametrize("version", fake.VERSIONS)


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queue, "PAUSE_S", 0.01)


def submit(*options: str, script: str = "sleep 30") -> str:
    command = ["sbatch", "--parsable", *options]
    done = subprocess.run(
        command, input=f"#!/bin/sh\n{script}\n", capture_output=True, text=True, check=True, timeout=60
    )
    return done.stdout.strip()


def settled(id: str, *states: str) -> QueuedJob:
    """The job, once it is in one of `states`."""
    end = time.monotonic() + 60
    while time.monotonic() < end:
        job = queue.shown(id)
        if job is not None and job.state in states:
            return job
        time.sleep(0.05)
    raise TimeoutError(queue.shown(id))


def command(folder: Path, name: str, script: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A command of Slurm's that says what the script says."""
    (folder / name).write_text(f"#!/bin/sh\n{script}\n")
    (folder / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")


@every_version
def test_running_waiting_and_finished_jobs_are_told_in_one_call(cluster: Cluster, version: str) -> None:
    env = cluster(version)
    odd = submit("--job-name=odd | name UserId=3", "--time=1-00:30", "--nodes=2")
    array = submit("--array=0-3%1", "--job-name=many", "--time=30")
    done = submit(script="exit 3")
    settled(done, "FAILED")
    before = len(fake.calls(env))
    found = queue.in_queue([odd, array, done, "999"])
    assert len(fake.calls(env)) == before + 1
    assert list(found) == [odd, *(f"{array}_{index}" for index in range(4)), done]
    assert found[odd].name == "odd | name UserId=3"
    assert (found[odd].state, found[odd].nodes) == ("RUNNING", "n[1-2]")
    assert 88_000 < (found[odd].time_left_s or 0) <= 88_200
    waiting = found[f"{array}_3"]
    assert (waiting.state, waiting.reason, waiting.nodes) == ("PENDING", "JobArrayTaskLimit", "")
    assert found[f"{array}_0"].reason == ""
    assert (found[done].state, found[done].reason) == ("FAILED", "NonZeroExitCode")


def test_the_answer_holds_the_jobs_that_were_asked_for(cluster: Cluster, tmp_path: Path) -> None:
    env = cluster()
    array, mine = submit("--array=0,3,5-6"), submit("--job-name=daso-abc")
    assert set(queue.in_queue([f"{array}_3", f"{array}_6", f"{array}_9"])) == {f"{array}_3", f"{array}_6"}
    assert queue.in_queue(["999"]) == queue.in_queue([]) == queue.in_queue() == {}
    assert set(queue.in_queue(["998", mine, "999"])) == {mine}
    assert set(queue.in_queue(name="daso-abc")) == {mine}
    assert f"--user={os.getuid()}" in fake.calls(env)[-1]
    assert queue.in_queue(name="$(touch broken); touch broken") == {}
    assert not (tmp_path / "broken").exists(), "no shell reads it"


def test_many_ids_are_asked_for_in_few_calls_and_an_array_in_one(cluster: Cluster) -> None:
    env = cluster(nodes=1, cpus=1)
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


def test_one_unknown_id_of_many_that_makes_the_whole_call_fail_costs_only_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = """for word; do case $word in --jobs=*) ids=${word#--jobs=};; esac; done
    case $ids in *9*) echo 'slurm_load_jobs error: Invalid job id specified' >&2; exit 1;; esac
    for id in $(echo $ids | tr , ' '); do printf '%s\\037RUNNING\\037\\0371:0\\037n1\\037x\\n' $id; done"""
    command(tmp_path, "squeue", script, monkeypatch)
    assert set(queue.in_queue(["1", "2", "9", "3"])) == {"1", "2", "3"}


def test_the_users_own_filters_and_formats_change_nothing(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster()
    id = submit("--hold")
    monkeypatch.setenv("SQUEUE_STATES", "RUNNING")
    monkeypatch.setenv("SQUEUE_FORMAT", "%u")
    assert "SQUEUE_STATES" not in queue.call("sh", "-c", "env")
    assert set(queue.in_queue([id])) == {id}


def test_a_job_that_squeue_does_not_know_yet_is_absent(cluster: Cluster) -> None:
    cluster(delay_s=1.0)
    id = submit()
    assert queue.in_queue([id]) == {}
    assert queue.shown(id) is None
    time.sleep(1.1)
    assert set(queue.in_queue([id])) == {id}


@every_version
def test_a_job_is_shown_with_its_time_left(cluster: Cluster, version: str) -> None:
    cluster(version)
    id = submit("--job-name=a JobState=FAILED", "--time=10", "--nodes=2")
    job = settled(id, "RUNNING")
    assert (job.id, job.name, job.nodes) == (id, "a JobState=FAILED", "n[1-2]")
    assert 580 < (job.time_left_s or 0) <= 600
    failed = settled(submit(script="exit 7"), "FAILED")
    assert (failed.reason, failed.time_left_s) == ("NonZeroExitCode", math.inf)
    assert queue.shown("999") is None


def test_elements_are_shown_one_by_one(cluster: Cluster) -> None:
    cluster()
    array = submit("--array=0-3%1")
    running, waiting = queue.shown(f"{array}_0"), queue.shown(f"{array}_2")
    assert running is not None
    assert waiting is not None
    assert (running.id, running.state) == (f"{array}_0", "RUNNING")
    assert (waiting.id, waiting.state, waiting.nodes) == (f"{array}_2", "PENDING", "")
    assert queue.shown(f"{array}_9") is None
    whole = queue.shown(array)
    assert whole is not None
    assert whole.id == array


def test_a_record_of_a_real_cluster_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    command(tmp_path, "scontrol", f"cat '{RECORDED / 'scontrol_show_array_22.05.txt'}'", monkeypatch)
    waiting, running = queue.shown("11_3"), queue.shown("11_1")
    reason = "JobArrayTaskLimit"
    assert waiting == QueuedJob(
        id="11_3", name="my-array", state="PENDING", reason=reason, time_left_s=300.0, nodes=""
    )
    assert running is not None
    assert (running.state, running.nodes, running.time_left_s) == ("RUNNING", "n1", 297.0)


@every_version
def test_every_attempt_is_accounted_for_in_order(cluster: Cluster, version: str) -> None:
    env = cluster(version)
    id = submit(script='test -n "$SLURM_RESTART_COUNT" || sleep 30; exit 4')
    settled(id, "RUNNING")
    time.sleep(1.1)  # accounting counts whole seconds
    queue.requeue(id)
    fake.wait(env, "FAILED")
    first, second = queue.accounted([id])[id]
    assert (first.state, second.state, second.nodes) == ("REQUEUED", "FAILED", "n1")


def test_accounting_knows_arrays_cancelled_and_waiting_jobs(cluster: Cluster) -> None:
    cluster()
    array, held = submit("--array=0-3%1"), submit("--hold")
    settled(f"{array}_0", "RUNNING")
    queue.cancel([f"{array}_1"])
    found = queue.accounted([array, held, "999"])
    # The elements that wait share one record, which is no job of its own.
    assert set(found) == {f"{array}_0", f"{array}_1", held}
    assert found[f"{array}_1"][0].state.startswith("CANCELLED by ")
    assert queue.words(found[f"{array}_1"][0].state) == ("cancelled", None)
    assert found[held][0].nodes == ""
    assert set(queue.accounted([f"{array}_0"])) == {f"{array}_0"}


def test_without_accounting_nothing_is_accounted_for(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster()
    cluster(accounting=False)
    id = submit()
    assert queue.accounted([id]) == {}
    cluster(without=("sacct",))
    monkeypatch.setenv("PATH", os.environ["PATH"].split(os.pathsep)[0])
    assert queue.accounted([submit()]) == {}


def test_cancelled_jobs_end_and_one_that_is_over_or_unknown_is_no_error(cluster: Cluster) -> None:
    env = cluster()
    running, waiting, done = submit(), submit("--hold"), submit(script="true")
    settled(done, "COMPLETED")
    queue.cancel([running, waiting, done, "999"])
    fake.wait(env)
    assert {id: job.state for id, job in queue.in_queue([running, waiting, done]).items()} == {
        running: "CANCELLED",
        waiting: "CANCELLED",
        done: "COMPLETED",
    }


def test_a_job_that_may_not_be_cancelled_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    over = "echo 'scancel: error: Kill job error on job id 7: Job/step already completing or completed' >&2"
    command(tmp_path, "scancel", f"{over}; exit 1", monkeypatch)
    queue.cancel(["7"])
    denied = "echo 'scancel: error: Kill job error on job id 8: Access/permission denied' >&2"
    command(tmp_path, "scancel", f"{over}; {denied}; exit 1", monkeypatch)
    with pytest.raises(SlurmError, match="denied"):
        queue.cancel(["7", "8"])


@every_version
def test_orders_that_slurm_refuses_are_errors_with_its_words(cluster: Cluster, version: str) -> None:
    cluster(version)
    fixed = submit("--no-requeue")
    settled(fixed, "RUNNING")
    with pytest.raises(SlurmError, match="Requested operation is presently disabled"):
        queue.requeue(fixed)
    with pytest.raises(SlurmError, match="Invalid job id specified"):
        queue.requeue("999")
    queue.requeue(submit("--hold"))  # already where it should go


def test_the_nodes_of_a_partition_are_told_kind_by_kind(cluster: Cluster) -> None:
    cluster(nodes=3, cpus=16, gpus=4)
    kind = NodeKind(count=3, cpus=16, gpus=4)
    assert queue.partition_of_nodes() == [kind]
    assert queue.partition_of_nodes("gpu") == [kind]
    assert queue.partition_of_nodes("nope") == []


@pytest.mark.parametrize(
    ("gres", "gpus"),
    [
        ("(null)", 0),
        ("gpu:4", 4),
        ("gpu:a100:4(S:0-1),nvme:1", 4),
        ("gpu:tesla:2,gpu:kepler:3(S:0,2)", 5),
        ("nvme:1,shard:8", 0),
        ("gpu", 1),
        ("gpu:a100:4(IDX:0-3)", 4),
    ],
)
def test_gpus_are_counted_in_every_form_of_a_gres(
    gres: str, gpus: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    main = f"64\\037{gres}"
    rows = f"main*\\0372\\037{main}\\nmain*\\0371\\037{main}\\nold\\0379\\0378\\037x"
    command(tmp_path, "sinfo", f"printf '{rows}\\n'", monkeypatch)
    assert queue.partition_of_nodes() == [NodeKind(count=3, cpus=64, gpus=gpus)]


@every_version
def test_the_limits_of_the_site_are_told(cluster: Cluster, version: str) -> None:
    cluster(version, max_array_size=501, max_submit=20, kill_wait_s=7)
    assert queue.limits() == Limits(max_array_size=501, max_submit=20, kill_wait_s=7)
    cluster(version, accounting=False)
    assert queue.limits().max_submit is None


def test_the_smallest_of_the_limits_that_apply_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = """case "$*" in
    *assoc*) echo 'long|50|'; echo '|300|40';;
    *qos*) echo 'normal|5||'; echo 'long|70|30|';;
    esac"""
    command(tmp_path, "sacctmgr", script, monkeypatch)
    command(tmp_path, "scontrol", "echo 'KillWait                = 30 sec'", monkeypatch)
    assert queue.limits() == Limits(max_array_size=None, max_submit=30, kill_wait_s=30)


def test_the_state_of_nodes_is_told_by_name(cluster: Cluster) -> None:
    cluster(down=["n3"])
    settled(submit("--nodes=1", "--cpus-per-task=8"), "RUNNING")
    assert queue.node_states(["n1", "n2", "n3", "zz"]) == {"n1": "allocated", "n2": "idle", "n3": "down*"}
    assert queue.node_states([]) == {}


@pytest.mark.parametrize(
    ("state", "expected"),
    [
        ("PENDING", ("queued", None)),
        ("CONFIGURING", ("queued", None)),
        ("REQUEUED", ("queued", "requeued")),
        ("REQUEUE_HOLD", ("queued", "held")),
        ("RUNNING", ("running", None)),
        ("COMPLETING", ("running", None)),
        ("SUSPENDED", ("running", "suspended")),
        ("COMPLETED", ("finished", None)),
        ("FAILED", ("failed", None)),
        ("NODE_FAIL", ("failed", "node_fail")),
        ("OUT_OF_MEMORY", ("failed", "out_of_memory")),
        ("BOOT_FAIL", ("failed", "boot_fail")),
        ("PREEMPTED", ("failed", "preempted")),
        ("TIMEOUT", ("timed_out", "time limit")),
        ("DEADLINE", ("timed_out", "deadline")),
        ("CANCELLED", ("cancelled", None)),
        ("CANCELLED by 0", ("cancelled", None)),
        ("CANCELLED+", ("cancelled", None)),
        ("OUT_OF_ME+", ("failed", "out_of_memory")),
        ("NODE_FAIL+", ("failed", "node_fail")),
        ("COMPLETED*", ("finished", None)),
        ("REVOKED", ("cancelled", "revoked")),
    ],
)
def test_every_state_has_our_word_and_its_cause(state: str, expected: Words) -> None:
    assert queue.words(state) == expected


@pytest.mark.parametrize("state", ["", "BROKEN", "C+", "RE+", "+"])
def test_a_state_of_a_newer_slurm_is_told_as_it_is(state: str) -> None:
    assert queue.words(state) == Words("running", state)


def test_every_state_of_the_manual_is_known() -> None:
    """`man squeue` of 22.05, "JOB STATE CODES"."""
    for state in (RECORDED / "job_states_22.05.txt").read_text().split():
        assert queue.words(state).status


def test_a_command_that_is_missing_or_fails_is_an_error_with_its_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(
        MachineError, match=r"no-such-command: command not found; is this a machine with Slurm\?"
    ):
        queue.call("no-such-command")
    command(tmp_path, "squeue", "echo 'squeue: error: Invalid user: x' >&2; exit 1", monkeypatch)
    with pytest.raises(SlurmError, match=r"^squeue: error: Invalid user: x$") as caught:
        queue.in_queue(["1"])
    assert caught.value.words == "squeue: error: Invalid user: x"
    command(tmp_path, "sinfo", "exit 9", monkeypatch)
    with pytest.raises(SlurmError, match="sinfo: exit code 9"):
        queue.partition_of_nodes()


def test_a_controller_that_does_not_answer_is_asked_three_times(cluster: Cluster) -> None:
    env = cluster()
    id = submit("--hold")
    fake.change(env, unreachable=2)
    assert set(queue.in_queue([id])) == {id}
    fake.change(env, unreachable=3)
    with pytest.raises(SlurmError, match="Unable to contact slurm controller"):
        queue.in_queue([id])
    assert len([call for call in fake.calls(env) if call[0] == "squeue"]) == 6


def test_a_command_that_hangs_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queue, "TIMEOUT_S", 0.2)
    command(tmp_path, "squeue", "exec sleep 20", monkeypatch)
    with pytest.raises(SlurmError, match=r"squeue: no answer within 0.2 s"):
        queue.in_queue(["1"])


def test_a_cluster_named_by_its_headline_is_no_job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    line = "5\\037RUNNING\\037None\\037UNLIMITED\\037n1\\037x"
    command(tmp_path, "squeue", f"printf 'CLUSTER: big\\n{line}\\n'", monkeypatch)
    assert queue.in_queue(["5"])["5"].time_left_s == math.inf
