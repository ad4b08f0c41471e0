"""Following runs to their ends (launcher.wait=true): what is said meanwhile, and the exit code at the end."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from fake_slurm import fake
from fake_slurm.fake import Cluster
from slurm_cases import a_run

from daso_bench.runner.launch.slurm import queue, slurm_status, submit
from daso_bench.runner.launch.slurm.queue import QueuedJob, SlurmError
from daso_bench.runner.records import display
from daso_bench.runner.records.run_directory import SUPERVISOR_GONE, RunDirectory

LOG = (
    "2026-11-28 13:46:01,001 supervisor INFO: {'kind': 'start', 'attempt': 1}\n"
    "2026-11-28 13:46:02,002 supervisor ERROR: rank 1: RuntimeError: boom\n"
    "Traceback (most recent call last):\n"
    '  File "model.py", line 3, in forward\n'
    "RuntimeError: boom\n"
    "2026-11-28 13:46:02,003 supervisor INFO: {'kind': 'trouble', 'rank': 1}\n"
    "2026-11-28 13:46:02,004 supervisor ERROR: rank 0: RuntimeError: Connection closed by peer\n"
    "Traceback (most recent call last):\n"
    "RuntimeError: Connection closed by peer\n"
    "2026-11-28 13:46:03,005 supervisor INFO: {'kind': 'end'}\n"
)


def ends(run: RunDirectory, word: str, reason: str | None = None) -> None:
    with run.lock():
        run.begin_attempt()
        run.end_attempt(word, reason, summary={"final_accuracy": 0.5} if word == "finished" else None)
    (run.path / "logs" / "supervisor.log").write_text(LOG)


class Play:
    """Jobs that move on by one act at each look; the last act stays."""

    def __init__(self, runs: list[RunDirectory]) -> None:
        self.runs = runs
        self.acts: list[Callable[[], None]] = []
        self.jobs: dict[str, QueuedJob] = {}
        self.looks = 0

    def look(self, ids: list[str]) -> dict[str, QueuedJob]:
        self.looks += 1
        assert self.looks < 50, "followed for ever"
        if self.acts:
            self.acts.pop(0)()
        return {id: self.jobs[id] for id in ids if id in self.jobs}

    def ends(self, run: RunDirectory, word: str, reason: str | None = None) -> None:
        """The run says its last word, and its job leaves the queue."""
        self.jobs.pop(run.status()["job"]["id"], None)
        ends(run, word, reason)


def told(id: str, state: str, reason: str = "", nodes: str = "") -> QueuedJob:
    return QueuedJob(id=id, state=state, reason=reason, nodes=nodes)


@pytest.fixture
def play(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Play:
    """Two submitted runs that wait, as jobs 1_0 and 1_1."""
    runs = [a_run(tmp_path / "results", seed=seed)[0] for seed in range(2)]
    made = Play(runs)
    for index, run in enumerate(runs):
        run.update(job={"id": f"1_{index}"})
        made.jobs[f"1_{index}"] = told(f"1_{index}", "PENDING", "Priority")
    monkeypatch.setattr(slurm_status, "POLL_S", 0.0)
    monkeypatch.setattr(slurm_status, "LATE_S", 0.0)
    monkeypatch.setattr(queue, "in_queue", made.look)
    monkeypatch.setattr(queue, "job_of", made.jobs.get)
    monkeypatch.setattr(queue, "last_accounted", lambda _: None)
    return made


def followed(runs: list[RunDirectory], capsys: pytest.CaptureFixture[str]) -> tuple[int, str]:
    code = slurm_status.follow(runs, display.make_console())
    return code, capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (("finished",), 0),
        (("failed",), 1),
        (("diverged",), 1),
        (("finished", "finished"), 0),
        (("finished", "failed"), 1),
        (("finished", "diverged"), 0),  # in a sweep a diverged run is a result of its strategy
        (("diverged", "timed_out"), 1),
    ],
)
def test_the_exit_code_is_that_of_the_runs(
    play: Play, capsys: pytest.CaptureFixture[str], words: tuple[str, ...], code: int
) -> None:
    runs = play.runs[: len(words)]

    def end() -> None:
        for run, word in zip(runs, words, strict=True):
            play.ends(run, word)

    play.acts = [lambda: None, end]
    found, shown = followed(runs, capsys)
    assert found == code
    assert shown.count("go on with: daso-bench resume") == sum(
        word in ("failed", "timed_out", "cancelled") for word in words
    )


def test_each_change_is_told_once_from_waiting_to_the_end(
    play: Play, capsys: pytest.CaptureFixture[str]
) -> None:
    run = play.runs[0]

    def starts() -> None:
        play.jobs["1_0"] = told("1_0", "RUNNING", nodes="n[1-2]")
        run.update(status="running")

    play.acts = [lambda: None, lambda: None, starts, lambda: None, lambda: play.ends(run, "finished")]
    code, shown = followed([run], capsys)
    assert code == 0
    lines = [line.strip() for line in shown.splitlines() if line.startswith(f"  {run.run_id}:")]
    assert lines == [
        f"{run.run_id}: queued  waits: Priority",
        f"{run.run_id}: running  on n[1-2]",
        f"{run.run_id}: finished",
    ]
    assert "50.00 %" in shown
    assert f"run directory: {run.path}" in shown


def test_failures_of_a_sweep_are_told_with_the_traceback_of_the_rank_that_failed_first(
    play: Play, capsys: pytest.CaptureFixture[str]
) -> None:
    """The other ranks complain later, of a lost connection; an older failure explains no time limit."""
    first, second = play.runs
    play.acts = [
        lambda: play.ends(first, "failed", "rank 1: RuntimeError: boom"),
        lambda: play.ends(second, "timed_out", "time limit of 10 min"),
    ]
    code, shown = followed(play.runs, capsys)
    assert code == 1
    assert f"{first.run_id}: failed: rank 1: RuntimeError: boom" in shown
    assert f"{second.run_id}: timed_out: time limit of 10 min" in shown
    assert shown.count("Traceback") == 1
    assert '  File "model.py", line 3, in forward\nRuntimeError: boom\n' in shown
    assert "Connection closed" not in shown
    assert "supervisor INFO" not in shown
    assert shown.count("go on with: daso-bench resume") == 2


def test_a_failure_of_which_nothing_else_is_known(play: Play, capsys: pytest.CaptureFixture[str]) -> None:
    """No rank's traceback fits the reason: the last one is shown. A bad file stays bad in a resume."""
    play.acts = [lambda: play.ends(play.runs[0], "failed", "rank 0: BadData: a.jpg: empty")]
    _, shown = followed(play.runs[:1], capsys)
    assert "RuntimeError: Connection closed by peer" in shown
    assert "go on with" not in shown


def test_a_job_that_slurm_requeues_is_followed_on(play: Play, capsys: pytest.CaptureFixture[str]) -> None:
    run = play.runs[0]

    def lost() -> None:
        play.ends(run, "failed", "node_fail: n2")
        play.jobs["1_0"] = told("1_0", "PENDING", "BeginTime")

    play.acts = [lambda: None, lost, lambda: None, lambda: play.ends(run, "finished")]
    code, shown = followed([run], capsys)
    assert code == 0
    assert f"{run.run_id}: queued  waits: BeginTime (node_fail: n2)" in shown


def test_a_last_word_that_the_file_system_shows_late_is_waited_for(
    play: Play, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The job is gone and status.json still says that it waits; and, next, that nobody holds its lock."""
    monkeypatch.setattr(slurm_status, "LATE_S", 30.0)
    first, second = play.runs

    def over() -> None:
        play.jobs.clear()
        second.update(status="running")
        assert second.status()["reason"] == SUPERVISOR_GONE

    def seen_at_last() -> None:
        play.ends(first, "finished")
        play.ends(second, "finished")

    play.acts = [lambda: None, over, lambda: None, lambda: None, seen_at_last]
    code, shown = followed(play.runs, capsys)
    assert code == 0
    assert "gone" not in shown


def test_runs_whose_jobs_are_gone_are_given_up_together(
    play: Play, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not one after the other: a thousand cancelled runs would take a day."""
    now = [0.0]
    monkeypatch.setattr(slurm_status.time, "monotonic", lambda: now[0])

    def tick(seconds: float) -> None:
        now[0] += seconds

    monkeypatch.setattr(slurm_status.time, "sleep", tick)
    monkeypatch.setattr(slurm_status, "POLL_S", 10.0)
    monkeypatch.setattr(slurm_status, "LATE_S", 90.0)
    play.acts = [lambda: None, play.jobs.clear]
    code, shown = followed(play.runs, capsys)
    assert code == 1
    assert shown.count("is gone, and Slurm does not know how it ended") >= 2
    assert now[0] <= 110


def test_a_controller_that_does_not_answer_ends_nothing(
    play: Play, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def unreachable(_: object) -> Any:
        raise SlurmError(["squeue"], "Unable to contact slurm controller")

    run = play.runs[0]
    monkeypatch.setattr(queue, "job_of", unreachable)
    look = play.look

    def in_queue(ids: list[str]) -> dict[str, QueuedJob]:
        found = look(ids)
        return unreachable(ids) if play.looks in (2, 3) else found

    monkeypatch.setattr(queue, "in_queue", in_queue)
    play.acts = [lambda: None, lambda: None, lambda: None, lambda: None, lambda: play.ends(run, "finished")]
    code, shown = followed([run], capsys)
    assert code == 0
    assert "queued  job 1_0: squeue: Unable to contact slurm controller" in shown
    assert "failed" not in shown


def test_ctrl_c_leaves_the_jobs_alone(
    play: Play, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(_: float) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(slurm_status.time, "sleep", interrupted)
    monkeypatch.setattr(queue, "cancel", lambda _: pytest.fail("nobody asked for that"))
    code, shown = followed(play.runs, capsys)
    assert code == 130
    assert "the jobs go on (daso-bench cancel DIR ends them)" in shown
    assert [run.status()["status"] for run in play.runs] == ["queued", "queued"]


def test_a_run_that_is_not_let_in_does_not_spoil_the_others_and_the_code_is_3(
    cluster: Cluster, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    env = cluster(max_submit=1)
    runs = [a_run(tmp_path / "results", seed=seed, wait=True) for seed in range(2)]

    def finish(_: float) -> None:
        ends(runs[0][0], "finished")

    monkeypatch.setattr(slurm_status.time, "sleep", finish)
    assert submit.SlurmLauncher().hand_over(runs, display.make_console()) == 3
    shown = capsys.readouterr().out
    assert f"{runs[1][0].run_id}: not submitted: more than the site lets you submit at once" in shown
    assert f"{runs[0][0].run_id}: finished" in shown
    assert len(fake.jobs(env)) == 1
