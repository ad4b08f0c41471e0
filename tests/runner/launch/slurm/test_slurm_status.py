"""What is told of a run whose job is in the queue, runs, or is gone: status.json and Slurm side by side."""

import socket
from pathlib import Path
from typing import Any

import pytest
from asking import code_of
from fake_slurm import fake
from fake_slurm.fake import Cluster
from slurm_cases import a_run

from daso_bench.runner.launch.slurm import queue, slurm_status, submit
from daso_bench.runner.launch.slurm.queue import QueuedJob, SlurmError
from daso_bench.runner.records.run_directory import SUPERVISOR_GONE, RunDirectory
from daso_bench.strategies.errors import MachineError

ELSEWHERE = {"host": "n1", "status": "running", "nodes": ["n1", "n2"]}


def job(state: str, reason: str = "", *, nodes: str = "") -> QueuedJob:
    return QueuedJob(id="7_1", state=state, reason=reason, nodes=nodes)


BACK = job("PENDING", "BeginTime")  # requeued


def status(word: str, reason: str | None = None, *attempts: dict[str, Any]) -> dict[str, Any]:
    return {"status": word, "reason": reason, "attempts": list(attempts), "job": {"id": "7_1"}}


@pytest.fixture
def silent(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """A controller and an accounting that know what a test puts in here: a job, or an error."""
    known: dict[str, Any] = {"job_of": None, "last_accounted": None}

    def answer(name: str) -> Any:
        def query(_: str) -> QueuedJob | None:
            if isinstance(known[name], Exception):
                raise known[name]
            return known[name]

        return query

    for name in known:
        monkeypatch.setattr(queue, name, answer(name))
    return known


@pytest.mark.parametrize(
    ("given", "in_queue", "word", "reason"),
    [
        (status("queued"), job("PENDING", "Priority"), "queued", "waits: Priority"),
        (status("queued", "time limit"), BACK, "queued", "waits: BeginTime (time limit)"),
        (status("queued"), job("RUNNING", nodes="n1"), "queued", None),  # it has not begun to speak yet
        (status("running", None, ELSEWHERE), job("RUNNING", nodes="n1"), "running", None),
        (status("failed", "node_fail: n2"), BACK, "queued", "waits: BeginTime (node_fail: n2)"),
        (status("failed", SUPERVISOR_GONE, ELSEWHERE), job("RUNNING", nodes="n1"), "running", None),
        (status("failed", SUPERVISOR_GONE), job("PENDING", "x"), "queued", "waits: x (supervisor gone)"),
        (status("failed", "rank 1: boom"), job("COMPLETING"), "failed", "rank 1: boom"),
        (status("finished"), job("COMPLETING"), "finished", None),
        (status("finished"), None, "finished", None),
        (status("failed", "rank 1: boom"), None, "failed", "rank 1: boom"),
    ],
)
def test_the_queue_adds_what_the_run_cannot_know(
    given: dict[str, Any], in_queue: QueuedJob | None, word: str, reason: str | None, silent: dict[str, Any]
) -> None:
    silent["job_of"] = SlurmError(["scontrol"], "must not be asked")
    told = slurm_status.with_queue(given, in_queue)
    assert (told["status"], told["reason"]) == (word, reason)


@pytest.mark.parametrize("given", [status("queued"), status("failed", SUPERVISOR_GONE, ELSEWHERE)])
@pytest.mark.parametrize(
    ("shown", "accounted", "word", "how"),
    [
        (None, None, "failed", "job 7_1 is gone, and Slurm does not know how it ended"),
        (None, SlurmError(["sacct"], "no"), "failed", "job 7_1 is gone, and Slurm does not know how"),
        (job("CANCELLED"), None, "cancelled", "job 7_1 ended before the run recorded its end: CANCELLED"),
        (job("TIMEOUT"), None, "timed_out", "job 7_1 ended before the run recorded its end: time limit"),
        (job("COMPLETED"), None, "failed", "job 7_1 ended before the run recorded its end: COMPLETED"),
        (None, job("OUT_OF_MEMORY"), "failed", "recorded its end: out_of_memory"),
        (None, job("CANCELLED by 0"), "cancelled", "recorded its end: CANCELLED by 0"),
    ],
)
def test_a_run_whose_job_is_gone_ends_as_slurm_says(
    given: dict[str, Any], silent: dict[str, Any], shown: Any, accounted: Any, word: str, how: str
) -> None:
    silent.update(job_of=shown, last_accounted=accounted)
    told = slurm_status.with_queue(given, None)
    assert told["status"] == word
    assert how in told["reason"]


@pytest.mark.parametrize("found", [job("PENDING"), job("RUNNING")])
def test_a_job_that_the_second_look_finds_alive_is_not_gone(found: QueuedJob, silent: dict[str, Any]) -> None:
    silent["job_of"] = found
    assert slurm_status.with_queue(status("queued"), None)["status"] == "queued"


@pytest.mark.parametrize("word", ["queued", "running"])
def test_no_answer_from_slurm_is_no_end_of_a_run(word: str, silent: dict[str, Any]) -> None:
    """A controller that is restarted must not look as if all jobs had failed."""
    silent["job_of"] = SlurmError(["scontrol"], "Unable to contact slurm controller")
    told = slurm_status.with_queue(status(word, None, ELSEWHERE), None)
    assert told["status"] == word
    assert told["reason"] == "job 7_1: scontrol: Unable to contact slurm controller"
    gone = slurm_status.with_queue(status("failed", SUPERVISOR_GONE, ELSEWHERE), None)
    assert (gone["status"], gone["reason"]) == ("failed", SUPERVISOR_GONE)


def test_of_a_run_that_runs_here_or_in_no_batch_system_slurm_is_not_asked(silent: dict[str, Any]) -> None:
    silent["job_of"] = SlurmError(["scontrol"], "must not be asked")
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


def submitted(count: int, folder: Path, **keys: Any) -> list[RunDirectory]:
    runs = [a_run(folder / "results", seed=seed, **keys) for seed in range(count)]
    assert submit.submit(runs, lambda _: None) == {}
    return [run for run, _ in runs]


def rows(capsys: pytest.CaptureFixture[str]) -> dict[str, str]:
    """Run -> its line in the table of `daso-bench status`."""
    lines = [line for line in capsys.readouterr().out.splitlines() if "ddp-" in line]
    return {line.split()[0].rpartition("/")[2]: line for line in lines}


def test_status_shows_job_nodes_time_left_and_why_a_run_waits_and_works_without_slurm(
    cluster: Cluster, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    env = cluster()
    first, second = submitted(2, tmp_path)
    fake.set_job(env, "1_0", state="RUNNING", nodes="n[1-2]", left="9:57")
    assert code_of("status", "results") == 0
    lines = rows(capsys)
    assert "1_0" in lines[first.run_id]
    assert "n[1-2]" in lines[first.run_id]
    assert " 9 min 57" in lines[first.run_id]
    assert "1_1" in lines[second.run_id]
    assert "waits: Priority" in lines[second.run_id]
    monkeypatch.setenv("PATH", str(tmp_path))  # on a laptop that sees the results folder
    assert code_of("status", "results") == 0
    line = rows(capsys)[second.run_id]
    assert line.split()[1] == "queued"
    assert "command not found; is this a machine with Slurm?" in line
    assert "gone" not in line


def test_waiting_and_running_runs_are_cancelled_for_good(
    cluster: Cluster, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    env = cluster()
    waiting, running, other = submitted(3, tmp_path)
    assert code_of("cancel", str(waiting.path)) == 0
    assert capsys.readouterr().out == f"{waiting.run_id}: taken out of the queue (job 1_0)\n"
    status = waiting.status()
    assert (status["status"], status["reason"]) == ("cancelled", "by daso-bench cancel")
    assert code_of("cancel", str(waiting.path)) == 0
    assert capsys.readouterr().out == f"{waiting.run_id}: is cancelled already\n"
    assert waiting.cancel_file.exists()
    fake.set_job(env, "1_1", state="RUNNING")
    with running.lock():  # its supervisor has the last word
        running.begin_attempt()
        assert code_of("cancel", str(running.path)) == 0
        assert running.status()["status"] == "running"
    assert capsys.readouterr().out == f"{running.run_id}: job 1_1 is asked to end\n"
    assert running.cancel_file.exists()
    assert [job["state"] for job in fake.jobs(env).values()] == ["CANCELLED", "CANCELLED", "PENDING"]
    assert other.status()["status"] == "queued"


def test_what_cancel_does_follows_from_the_queue_and_the_last_word(
    cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    env = cluster()
    back, over = submitted(2, tmp_path)
    back.update(status="cancelled", reason="by scancel")  # and Slurm has put its job back
    assert slurm_status.cancel(back) == "taken out of the queue (job 1_0)"
    assert fake.jobs(env)["1_0"]["state"] == "CANCELLED"
    queue.cancel(["1_1"])
    for word in ("finished", "diverged", "failed", "timed_out"):
        over.update(status=word, reason="its own")
        assert slurm_status.cancel(over) == f"is {word} already"
        assert (over.status()["status"], over.status()["reason"]) == (word, "its own")
    jobless, _ = a_run(tmp_path / "jobless")
    assert slurm_status.cancel(jobless) == "cancelled"
    assert jobless.status()["status"] == "cancelled"
    (unheard,) = submitted(1, tmp_path / "unheard")
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(MachineError, match="scancel: command not found"):
        slurm_status.cancel(unheard)
    assert unheard.status()["status"] == "queued"
