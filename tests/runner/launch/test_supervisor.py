"""The supervisor with made-up ranks: its clock, limits and outcome; an attempt that cannot be recorded."""

import json
import os
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from daso_bench.runner.launch import supervisor as module
from daso_bench.runner.launch.attempt import Ranks, run_attempt
from daso_bench.runner.launch.failures import Rank, Vitals, judge, whereabouts
from daso_bench.runner.launch.supervisor import Supervisor
from daso_bench.runner.machine.signals import Interrupts
from daso_bench.runner.records.run_directory import Outcome, RunDirectory
from daso_bench.strategies.errors import ConfigError


class MadeUp:
    """A process that ends when told to; its pid is one that cannot be."""

    pid = 1 << 23

    def __init__(self) -> None:
        self.sentinel, self._end = os.pipe()
        self.exitcode: int | None = None

    def ends(self, exit_code: int) -> None:
        self.exitcode = exit_code
        os.close(self._end)
        self._end = -1

    def kill(self) -> None:
        raise ProcessLookupError

    def join(self, timeout: float | None = None) -> None:
        if self.exitcode is None:
            self.ends(-9)

    def close(self) -> None:
        os.close(self.sentinel)
        if self._end >= 0:
            os.close(self._end)


class Scene:
    """Made-up ranks under a supervisor; `say` speaks as a rank does."""

    def __init__(self, ranks: int, stall_s: float = 60.0) -> None:
        self.processes = [MadeUp() for _ in range(ranks)]
        pairs = [socket.socketpair() for _ in range(ranks)]
        self.lines = [theirs for _, theirs in pairs]
        for ours, _ in pairs:
            ours.setblocking(False)
        self.ranks = [
            Rank(number=number, process=process, line=ours, log=Path(f"rank_{number}.log"))
            for number, (process, (ours, _)) in enumerate(zip(self.processes, pairs, strict=True))
        ]
        self.events: list[dict[str, Any]] = []
        self.interrupts = Interrupts()
        self.supervisor = Supervisor(
            self.ranks, stall_s=stall_s, patience_s=8, interrupts=self.interrupts, on_event=self.events.append
        )

    def say(self, rank: int, kind: str = "beat", **fields: Any) -> None:
        message = {"kind": kind, "progress": {}, "steps": 0, "call": "", "reason": None, "summary": None}
        self.lines[rank].sendall(json.dumps(message | fields).encode() + b"\n")

    def finish(self, rank: int, status: str = "finished", **fields: Any) -> None:
        self.say(rank, "finish", status=status, **fields)
        self.processes[rank].ends(0)

    def close(self) -> None:
        for process, line, rank in zip(self.processes, self.lines, self.ranks, strict=True):
            process.close()
            line.close()
            rank.line.close()


@pytest.fixture
def scene() -> Iterator[Scene]:
    made = Scene(2)
    yield made
    made.close()


def test_what_a_rank_said_before_its_end_is_heard(scene: Scene) -> None:
    scene.say(0, progress={"step": 4})
    scene.finish(0, summary={"a": 1})
    scene.finish(1)
    assert scene.supervisor.watch() == Outcome(status="finished", reason=None, exit_code=0, summary={"a": 1})
    assert scene.events[0] == {"kind": "progress", "rank": 0, "progress": {"step": 4}, "call": ""}


def test_a_message_in_pieces_never_blocks_the_watch(scene: Scene) -> None:
    scene.lines[0].sendall(b'{"kind": "beat", "progress": {"ste')
    begin = time.monotonic()
    scene.supervisor._listen()
    assert time.monotonic() - begin < 1
    assert scene.events == []
    scene.lines[0].sendall(b'p": 1}, "steps": 0, "call": ""}\n')
    scene.supervisor._listen()
    assert scene.events[0]["progress"] == {"step": 1}


def test_a_line_that_closed_does_not_keep_the_watch_busy(scene: Scene) -> None:
    scene.lines[0].close()
    scene.supervisor._listen()
    begin = time.monotonic()
    scene.supervisor._listen()
    assert time.monotonic() - begin > 0.8 * module.TICK_S


def test_time_in_which_the_supervisor_was_away_is_not_counted(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = time.monotonic
    monkeypatch.setattr(module.time, "monotonic", lambda: real() + 3600)
    scene.supervisor._listen()
    assert scene.supervisor._now_s == module.LONGEST_TURN_S


@pytest.mark.parametrize(("state", "frozen"), [("S", True), ("T", True), ("R", False)])
def test_silence_is_judged_by_what_the_kernel_says(
    scene: Scene, monkeypatch: pytest.MonkeyPatch, state: str, frozen: bool
) -> None:
    monkeypatch.setattr(module, "vitals", lambda pid: Vitals(state, 1))
    scene.say(0)
    scene.supervisor._listen()
    for now_s in (1.5, 4.9):
        scene.supervisor._now_s = now_s
        scene.supervisor._look_for_frozen()
        assert scene.supervisor._faults == []
    scene.supervisor._now_s = 6.0
    scene.say(1)
    scene.supervisor._listen()
    scene.supervisor._look_for_frozen()
    assert [fault.rank for fault in scene.supervisor._faults] == ([0] if frozen else [])


def test_without_proc_a_rank_may_take_longer_to_its_first_beat(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "vitals", lambda pid: None)
    scene.say(1)
    scene.supervisor._listen()
    scene.supervisor._now_s = 10.0
    scene.supervisor._look_for_frozen()
    assert [fault.rank for fault in scene.supervisor._faults] == [1]
    scene.supervisor._now_s = 31.0
    scene.supervisor._look_for_frozen()
    assert [fault.rank for fault in scene.supervisor._faults] == [1, 0]


def test_a_loss_that_is_nan_is_no_progress() -> None:
    scene = Scene(1, stall_s=0.5)
    scene.say(0, progress={"loss": float("nan")})
    scene.supervisor._listen()
    end = time.monotonic() + 3
    while scene.supervisor._stall is None and time.monotonic() < end:
        scene.say(0, progress={"loss": float("nan")})
        scene.supervisor._listen()
        scene.supervisor._look_for_stall()
    assert scene.supervisor._stall is not None
    scene.close()


def test_steps_alone_are_progress_enough() -> None:
    scene = Scene(1, stall_s=0.5)
    for step in range(8):
        scene.say(0, steps=step)
        scene.supervisor._listen()
        scene.supervisor._look_for_stall()
        time.sleep(0.2)
    assert scene.supervisor._stall is None
    scene.close()


def test_ranks_that_finished_and_do_not_leave_are_killed(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "LEAVE_S", 0.3)
    scene.finish(0)
    scene.say(1, "finish", status="finished")
    assert scene.supervisor.watch().status == "finished"
    assert scene.processes[1].exitcode == -9


def test_a_bad_end_after_finish_still_counts(scene: Scene) -> None:
    scene.finish(0)
    scene.say(1, "finish", status="finished")
    scene.processes[1].ends(-11)
    outcome = scene.supervisor.watch()
    assert (outcome.status, outcome.reason) == ("failed", "rank 1: killed by SIGSEGV")


def test_a_run_that_finishes_in_spite_of_an_interrupt_has_finished(scene: Scene) -> None:
    scene.interrupts.names.append("SIGINT")
    scene.finish(0)
    scene.finish(1)
    outcome = scene.supervisor.watch()
    assert (outcome.status, outcome.exit_code) == ("finished", 130)


def test_trouble_while_stopping_is_part_of_the_stopping(scene: Scene) -> None:
    scene.supervisor._listen()
    scene.interrupts.names.append("SIGTERM")
    scene.supervisor._answer_interrupts()
    assert scene.lines[0].recv(100) == b"interrupt\n"
    scene.finish(0, "cancelled")
    scene.processes[1].ends(1)
    outcome = scene.supervisor.watch()
    assert (outcome.status, outcome.exit_code) == ("cancelled", 130)
    assert outcome.reason == "interrupted by SIGTERM; rank 1 did not stop in good order"


def test_trouble_before_the_interrupt_is_the_cause_but_the_code_tells_of_both(scene: Scene) -> None:
    scene.processes[1].ends(-9)
    scene.supervisor._listen()
    scene.interrupts.names.append("SIGINT")
    time.sleep(0.05)
    scene.supervisor._now_s += 0.1
    outcome = scene.supervisor.watch()
    assert (outcome.status, outcome.exit_code) == ("failed", 130)


def test_the_odd_one_out_is_seen(scene: Scene) -> None:
    scene.ranks[0].call = "all_reduce"
    assert whereabouts(scene.ranks) == "rank 0 last in all_reduce, rank 1 outside collectives"


def test_the_first_reason_of_the_worst_word_is_told(scene: Scene) -> None:
    for rank, status in zip(scene.ranks, ("cancelled", "diverged"), strict=True):
        rank.finish = {"status": status, "reason": status, "summary": None}
    outcome = judge(scene.ranks, [], stall=None, interrupts=[], interrupted_first=False)
    assert (outcome.status, outcome.reason, outcome.exit_code) == ("diverged", "diverged", 1)


class Vanishing(Ranks):
    """Ranks whose folder is removed while they start; then comes `error`."""

    def __init__(self, directory: RunDirectory, error: BaseException) -> None:
        self._directory, self._error = directory, error

    def start(self, started: list[Rank], attempt: int) -> dict[str, Any]:
        self._directory.status_file.unlink()
        raise self._error


@pytest.mark.parametrize(
    ("error", "raised"),
    [
        (
            KeyboardInterrupt(),
            KeyboardInterrupt,
        ),  # not a refused run, after which a sweep goes on
        (OSError("no"), ConfigError),
    ],
)
def test_an_interrupt_that_cannot_be_written_down_stays_one(
    tmp_path: Path, error: BaseException, raised: type[BaseException]
) -> None:
    run = RunDirectory.create({"study": {"name": "runs"}, "run": {"id": "ddp-s0-12345678"}}, tmp_path)
    with pytest.raises(raised, match=r"status\.json"):
        run_attempt(run, Vanishing(run, error), stall_s=5)
