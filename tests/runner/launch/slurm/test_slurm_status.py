"""What is told of a run whose job is in the queue, runs, or is gone: status.json and Slurm side by side."""

import socket
import time
from pathlib import Path
from typing import Any

import pytest
from fake_slurm import fake
from fake_slurm.fake import Cluster
from slurm_cases import a_run

from daso_bench.runner.cli.main import main
from daso_bench.runner.launch.slurm import queue, slurm_status, submit
from daso_bench.runner.launch.slurm.queue import QueuedJob, SlurmError
from daso_bench.runner.records.run_directory import SUPERVISOR_GONE, RunDirectory
from daso_bench.strategies.errors import MachineError

ELSEWHERE = {"host": "n1", "status": "running", "nodes": ["n1", "n2"]}


def job(state: str, reason: str = "", *, nodes: str = "", left_s: float | None = None) -> QueuedJob:
    return QueuedJob(
        id="7_1", name="daso-bench-1", state=state, reason=reason, time_left_s=left_s, nodes=nodes
    )


def status(word: str, reason: str | None = None, *attempts: dict[str, Any]) -> dict[str, Any]:
    return {"status": word, "reason": reason, "attempts": list(attempts), "job": {"id": "7_1"}}


@pytest.fixture
def silent(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """A controller and an accounting that know what a test puts in here: a job, or an error."""
    known: dict[str, Any] = {"shown": None, "accounted": None}

    def shown(_: str) -> QueuedJob | None:
        if isinstance(known["shown"], Exception):
            raise known["shown"]
        return known["shown"]

    def accounted(ids: list[str]) -> dict[str, list[QueuedJob]]:
        if isinstance(known["accounted"], Exception):
            raise known["accounted"]
        return {} if known["accounted"] is None else {ids[0]: known["accounted"]}

    monkeypatch.setattr(queue, "shown", shown)
    monkeypatch.setattr(queue, "accounted", accounted)
    return known


@pytest.mark.parametrize(
    ("given", "in_queue", "word", "reason"),
    [
        (status("queued"), job("PENDING", "Priority"), "queued", "waits: Priority"),
        (
            status("queued", "time limit of 10 min"),
            job("PENDING", "BeginTime"),
            "queued",
            "waits: BeginTime (time limit of 10 min)",
        ),
        (status("queued"), job("RUNNING", nodes="n1"), "queued", None),  # it has not begun to speak yet
        (status("running", None, ELSEWHERE), job("RUNNING", nodes="n1"), "running", None),
        (
            status("cancelled", "by scancel"),
            job("PENDING", "BeginTime"),
            "queued",
            "waits: BeginTime (by scancel)",
        ),
        (
            status("failed", "node_fail: n2"),
            job("PENDING", "BeginTime"),
            "queued",
            "waits: BeginTime (node_fail: n2)",
        ),
        (status("failed", SUPERVISOR_GONE, ELSEWHERE), job("RUNNING", nodes="n1"), "running", None),
        (status("failed", SUPERVISOR_GONE), job("PENDING", "x"), "queued", "waits: x (supervisor gone)"),
        (status("failed", "rank 1: boom"), job("COMPLETING"), "failed", "rank 1: boom"),
        (status("finished"), job("COMPLETING"), "finished", None),
        (status("finished"), None, "finished", None),
        (status("failed", "rank 1: boom"), None, "failed", "rank 1: boom"),
        (status("cancelled", "by daso-bench cancel"), None, "cancelled", "by daso-bench cancel"),
    ],
)
def test_the_queue_adds_what_the_run_cannot_know(
    given: dict[str, Any], in_queue: QueuedJob | None, word: str, reason: str | None, silent: dict[str, Any]
) -> None:
    silent["shown"] = SlurmError(["scontrol"], "must not be asked")
    told = slurm_status.with_queue(given, in_queue)
    assert (told["status"], told["reason"]) == (word, reason)


def test_nodes_time_left_and_reason_are_those_of_the_queue() -> None:
    told = slurm_status.with_queue(status("running"), job("RUNNING", nodes="n[1-2]", left_s=95.0))
    assert told["queue"] == {
        "id": "7_1", "state": "RUNNING", "nodes": "n[1-2]", "time_left_s": 95.0, "reason": "",
    }  # fmt: skip
    assert "queue" not in slurm_status.with_queue(status("finished"), job("COMPLETED"))


@pytest.mark.parametrize("given", [status("queued"), status("failed", SUPERVISOR_GONE, ELSEWHERE)])
@pytest.mark.parametrize(
    ("shown", "accounted", "word", "how"),
    [
        (None, None, "failed", "job 7_1 is gone, and Slurm does not know how it ended"),
        (None, SlurmError(["sacct"], "no"), "failed", "job 7_1 is gone, and Slurm does not know how"),
        (job("CANCELLED"), None, "cancelled", "job 7_1 ended before the run recorded its end: CANCELLED"),
        (job("NODE_FAIL"), None, "failed", "job 7_1 ended before the run recorded its end: node_fail"),
        (job("TIMEOUT"), None, "timed_out", "job 7_1 ended before the run recorded its end: time limit"),
        (job("COMPLETED"), None, "failed", "job 7_1 ended before the run recorded its end: COMPLETED"),
        (None, [job("NODE_FAIL"), job("OUT_OF_MEMORY")], "failed", "recorded its end: out_of_memory"),
        (None, [job("CANCELLED by 0")], "cancelled", "recorded its end: CANCELLED by 0"),
    ],
)
def test_a_run_whose_job_is_gone_ends_as_slurm_says(
    given: dict[str, Any], silent: dict[str, Any], shown: Any, accounted: Any, word: str, how: str
) -> None:
    silent.update(shown=shown, accounted=accounted)
    told = slurm_status.with_queue(given, None)
    assert told["status"] == word
    assert how in told["reason"]


@pytest.mark.parametrize("found", [job("PENDING"), job("RUNNING")])
def test_a_job_that_the_second_look_finds_alive_is_not_gone(found: QueuedJob, silent: dict[str, Any]) -> None:
    silent["shown"] = found
    assert slurm_status.with_queue(status("queued"), None)["status"] == "queued"


@pytest.mark.parametrize("word", ["queued", "running"])
def test_no_answer_from_slurm_is_no_end_of_a_run(word: str, silent: dict[str, Any]) -> None:
    """A controller that is restarted must not look as if all jobs had failed."""
    silent["shown"] = SlurmError(["scontrol"], "Unable to contact slurm controller")
    told = slurm_status.with_queue(status(word, None, ELSEWHERE), None)
    assert told["status"] == word
    assert told["reason"] == "job 7_1: scontrol: Unable to contact slurm controller"
    gone = slurm_status.with_queue(status("failed", SUPERVISOR_GONE, ELSEWHERE), None)
    assert (gone["status"], gone["reason"]) == ("failed", SUPERVISOR_GONE)


def test_of_a_run_that_runs_here_or_in_no_batch_system_slurm_is_not_asked(silent: dict[str, Any]) -> None:
    silent["shown"] = SlurmError(["scontrol"], "must not be asked")
    here = status("running", None, {"host": socket.gethostname(), "status": "running"})
    for given in (here, {"status": "queued", "reason": None, "attempts": []}):
        assert slurm_status.with_queue(given, None) == given


def test_the_queue_is_asked_once_for_all_runs_that_may_still_be_in_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def in_queue(ids: list[str]) -> dict[str, QueuedJob]:
        asked.append(list(ids))
        return {"7_1": job("PENDING")}

    asked: list[list[str]] = []
    monkeypatch.setattr(queue, "in_queue", in_queue)
    many = [status("queued"), status("finished"), status("diverged"), status("failed"), {"status": "queued"}]
    assert list(slurm_status.jobs_of(many)) == ["7_1"]
    assert asked == [["7_1", "7_1"]]
    assert slurm_status.jobs_of([status("finished")]) == {}
    assert len(asked) == 1


@pytest.mark.parametrize("before", ["queued", "running"])  # running: its lock was on another machine
def test_a_last_word_that_comes_late_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, before: str
) -> None:
    run, _ = a_run(tmp_path / "results")
    run.update(status=before)
    assert before == "queued" or run.status()["reason"] == SUPERVISOR_GONE
    monkeypatch.setattr(slurm_status, "LATE_S", 30.0)
    monkeypatch.setattr(slurm_status.time, "sleep", lambda _: run.update(status="finished"))
    assert slurm_status.settle(run)["status"] == "finished"


def test_a_last_word_that_never_comes_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run, _ = a_run(tmp_path / "results")
    monkeypatch.setattr(slurm_status, "LATE_S", 0.0)
    assert slurm_status.settle(run)["status"] == "queued"


def code_of(*arguments: str) -> int:
    with pytest.raises(SystemExit) as caught:
        main(arguments)
    assert isinstance(caught.value.code, int)
    return caught.value.code


def submitted(count: int, folder: Path, **keys: Any) -> list[RunDirectory]:
    runs = [a_run(folder / "results", seed=seed, **keys) for seed in range(count)]
    assert submit.submit(runs, lambda _: None).refused == {}
    return [run for run, _ in runs]


def rows(capsys: pytest.CaptureFixture[str]) -> dict[str, str]:
    """Run -> its line in the table of `daso-bench status`."""
    lines = [line for line in capsys.readouterr().out.splitlines() if "ddp-" in line]
    return {line.split()[0].rpartition("/")[2]: line for line in lines}


def test_status_shows_job_nodes_time_left_and_why_a_run_waits(
    cluster: Cluster, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    env = cluster(hold=True)
    first, second = submitted(2, tmp_path, array_parallelism=1, python="sleep 60 #")
    assert code_of("status", "results") == 0
    for line in rows(capsys).values():
        assert "waits: Priority" in line
    fake.release(env)
    assert code_of("status", str(tmp_path / "results" / "runs")) == 0
    found = rows(capsys)
    assert "1_0" in found[first.run_id]
    assert "n[1-2]" in found[first.run_id]
    assert " 9 min 5" in found[first.run_id]  # of ten
    assert "1_1" in found[second.run_id]
    assert "waits: JobArrayTaskLimit" in found[second.run_id]


def test_status_works_where_there_is_no_slurm(
    cluster: Cluster, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a laptop that sees the results folder; the run may well be waiting still."""
    cluster(hold=True)
    (run,) = submitted(1, tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert code_of("status", "results") == 0
    line = rows(capsys)[run.run_id]
    assert line.split()[1] == "queued"
    assert "command not found; is this a machine with Slurm?" in line
    assert "gone" not in line


@pytest.mark.parametrize(
    ("accounting", "forgotten", "word", "how"),
    [
        (True, False, "cancelled", "job 1 ended before the run recorded its end: CANCELLED"),
        (True, True, "cancelled", "recorded its end: CANCELLED by"),
        (False, True, "failed", "Slurm does not know how it ended"),
    ],
)
def test_status_tells_how_a_job_ended_that_said_nothing(
    cluster: Cluster,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    accounting: bool,
    forgotten: bool,
    word: str,
    how: str,
) -> None:
    env = cluster(hold=True, accounting=accounting)
    (run,) = submitted(1, tmp_path)
    queue.cancel(["1"])
    if forgotten:  # by the controller
        fake.change(env, min_job_age_s=0.0)
    assert code_of("status", "results") == 0
    line = rows(capsys)[run.run_id]
    assert (line.split()[1], how in line) == (word, True)


def test_a_waiting_run_is_cancelled_for_good(
    cluster: Cluster, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    env = cluster(hold=True)
    first, second = submitted(2, tmp_path)
    assert code_of("cancel", str(first.path)) == 0
    assert capsys.readouterr().out == f"{first.run_id}: taken out of the queue (job 1_0)\n"
    found = first.status()
    assert (found["status"], found["reason"]) == ("cancelled", "by daso-bench cancel")
    assert [one["state"] for one in fake.jobs(env).values()] == ["CANCELLED", "PENDING"]
    assert second.status()["status"] == "queued"
    assert code_of("cancel", str(first.path)) == 0
    assert capsys.readouterr().out == f"{first.run_id}: is cancelled already\n"
    assert first.cancel_file.exists()


def test_a_running_run_is_told_to_end_and_its_supervisor_has_the_last_word(
    cluster: Cluster, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    env = cluster()
    (run,) = submitted(1, tmp_path, python="sleep 60 #")
    fake.wait(env, "RUNNING")
    with run.lock():
        run.begin_attempt()
        assert code_of("cancel", "results") == 0
        assert run.status()["status"] == "running"
    assert capsys.readouterr().out == f"{run.run_id}: job 1 is asked to end\n"
    assert run.cancel_file.exists()
    assert fake.wait(env)["1"]["state"] == "CANCELLED"


def test_a_run_that_slurm_has_put_back_is_cancelled_although_it_ended_before(
    cluster: Cluster, tmp_path: Path
) -> None:
    """Its last attempt says "cancelled", and its job waits in the queue again."""
    env = cluster(hold=True)
    (run,) = submitted(1, tmp_path)
    run.update(status="cancelled", reason="by scancel")
    assert slurm_status.cancel(run) == "taken out of the queue (job 1)"
    assert fake.jobs(env)["1"]["state"] == "CANCELLED"
    assert run.cancel_file.exists()


@pytest.mark.parametrize("word", ["finished", "diverged", "failed", "timed_out"])
def test_a_run_that_is_over_keeps_its_word(cluster: Cluster, tmp_path: Path, word: str) -> None:
    cluster(hold=True)
    (run,) = submitted(1, tmp_path)
    queue.cancel(["1"])
    run.update(status=word, reason="its own")
    assert slurm_status.cancel(run) == f"is {word} already"
    assert (run.status()["status"], run.status()["reason"]) == (word, "its own")


def test_a_run_that_never_got_a_job_is_cancelled(tmp_path: Path) -> None:
    run, _ = a_run(tmp_path / "results")
    assert slurm_status.cancel(run) == "cancelled"
    assert run.status()["status"] == "cancelled"


def test_a_cancel_that_slurm_does_not_hear_is_told(
    cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster(hold=True)
    (run,) = submitted(1, tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path))
    began = time.monotonic()
    with pytest.raises(MachineError, match="scancel: command not found"):
        slurm_status.cancel(run)
    assert time.monotonic() - began < 10
    assert run.status()["status"] == "queued"
