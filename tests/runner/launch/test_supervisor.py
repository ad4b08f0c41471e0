"""The supervisor with made-up ranks: its clock, limits and outcome; the root cause of several faults."""

import json
import os
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from daso_bench.runner.launch import supervisor as module
from daso_bench.runner.launch.failures import Fault, Rank, exception_fault, exit_fault, root_cause
from daso_bench.runner.launch.supervisor import Ranks, Supervisor, run_attempt
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


def test_what_a_rank_said_before_its_end_is_heard_also_in_pieces(scene: Scene) -> None:
    scene.lines[0].sendall(b'{"kind": "beat", "progress": {"ste')
    begin = time.monotonic()
    scene.supervisor._listen()
    assert time.monotonic() - begin < 1
    assert scene.events == []
    scene.lines[0].sendall(b'p": 4}, "steps": 0, "call": ""}\n')
    scene.finish(0, summary={"a": 1})
    scene.finish(1)
    assert scene.supervisor.watch() == Outcome(status="finished", reason=None, exit_code=0, summary={"a": 1})
    assert scene.events[0] == {"kind": "progress", "rank": 0, "progress": {"step": 4}, "call": ""}


@pytest.mark.parametrize(
    ("ends", "interrupted", "status", "exit_code"),
    [
        (("finished", "finished"), True, "finished", 130),
        (("cancelled", "diverged"), False, "diverged", 1),
        (("timed_out", "finished"), False, "timed_out", 1),
        (("finished", -11), False, "failed", 1),
    ],
)
def test_the_worst_end_of_the_ranks_is_the_runs(
    scene: Scene, ends: tuple[Any, ...], interrupted: bool, status: str, exit_code: int
) -> None:
    if interrupted:
        scene.interrupts.names.append("SIGINT")
    for rank, end in enumerate(ends):
        if isinstance(end, int):  # after it had finished
            scene.say(rank, "finish", status="finished")
            scene.processes[rank].ends(end)
        else:
            scene.finish(rank, end, reason=None if end == "finished" else end)
    outcome = scene.supervisor.watch()
    assert (outcome.status, outcome.exit_code) == (status, exit_code)
    reasons = {"finished": None, "failed": "rank 1: killed by SIGSEGV"}
    assert outcome.reason == reasons.get(status, status)


def test_only_progress_keeps_the_stall_watch_off_and_it_tells_where_ranks_are() -> None:
    """Steps are progress; a loss that is NaN, again and again, is none."""
    scene = Scene(2, stall_s=10.0)
    scene.supervisor._now_s = 5.0
    for step in range(3):
        scene.say(0, steps=step, progress={"loss": float("nan")})
        scene.supervisor._listen()
        scene.supervisor._now_s += 9.0
        scene.supervisor._look_for_stall()
        assert scene.supervisor._stall is None
    scene.say(0, steps=2, progress={"loss": float("nan")}, call="all_reduce")
    scene.supervisor._listen()
    scene.supervisor._now_s += 1.5
    scene.supervisor._look_for_stall()
    where = "rank 0 last in all_reduce, rank 1 outside collectives"
    assert scene.supervisor._stall == f"no progress for 10 s; {where}"
    scene.close()


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


@pytest.mark.parametrize(
    ("remote", "stopped", "frozen_s"), [(False, True, 6), (False, False, None), (True, False, 21)]
)
def test_a_silent_rank_is_frozen_if_it_is_stopped_or_on_another_machine(
    scene: Scene, monkeypatch: pytest.MonkeyPatch, remote: bool, stopped: bool, frozen_s: int | None
) -> None:
    monkeypatch.setattr(module, "is_stopped", lambda pid: stopped)
    scene.ranks[0].host = "n1" if remote else None
    scene.say(0)
    scene.supervisor._listen()
    for now_s in (1.5, 4.9, 6.0, 19.0, 21.0):
        scene.supervisor._now_s = now_s
        scene.say(1)
        scene.supervisor._listen()
        scene.supervisor._look_for_frozen()
        known = frozen_s is not None and now_s >= frozen_s
        assert [fault.rank for fault in scene.supervisor._faults] == ([0] if known else [])
    assert scene.ranks[0].silent is remote


def test_ranks_that_finished_and_do_not_leave_are_killed(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "LEAVE_S", 0.3)
    scene.finish(0)
    scene.say(1, "finish", status="finished")
    assert scene.supervisor.watch().status == "finished"
    assert scene.processes[1].exitcode == -9


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


class Vanishing(Ranks):
    """Ranks whose folder is removed while they start; then comes `error`."""

    def __init__(self, directory: RunDirectory, error: BaseException) -> None:
        self._directory, self._error = directory, error

    def start(self, started: list[Rank]) -> dict[str, Any]:
        self._directory.status_file.unlink()
        raise self._error


@pytest.mark.parametrize(
    ("error", "raised"),
    [
        (KeyboardInterrupt(), KeyboardInterrupt),  # not a refused run, after which a sweep goes on
        (OSError("no"), ConfigError),
    ],
)
def test_an_interrupt_that_cannot_be_written_down_stays_one(
    tmp_path: Path, error: BaseException, raised: type[BaseException]
) -> None:
    run = RunDirectory.create({"study": {"name": "runs"}, "run": {"id": "ddp-s0-12345678"}}, tmp_path)
    with pytest.raises(raised, match=r"status\.json"):
        run_attempt(run, Vanishing(run, error), stall_s=5)


def raised(rank: int, seen: int, kind: str, message: str) -> Fault:
    report: dict[str, Any] = {"type": kind, "message": message, "call": "", "traceback": "", "exit_code": 1}
    return exception_fault(rank, seen, report)


def died(rank: int, seen: int, exit_code: int) -> Fault:
    return exit_fault(rank, seen, exit_code, "", finished=False)


BOOM = raised(2, 1, "RuntimeError", "boom")
COMPLAINT = raised(0, 0, "RuntimeError", "[pair.cc:534] Connection closed by peer [127.0.0.1]:1")


@pytest.mark.parametrize(
    ("faults", "rank"),
    [
        ([COMPLAINT, BOOM], 2),
        ([COMPLAINT, died(1, 1, -9)], 1),
        ([raised(0, 0, "ValueError", "unheard of"), died(1, 1, -11)], 1),
        ([BOOM, died(1, 2, -6)], 2),  # a helper thread aborts for want of a peer
        ([COMPLAINT, died(1, 2, -6)], 1),
        ([COMPLAINT, died(3, 1, 0)], 3),
        ([died(3, 0, 0), died(1, 1, -9)], 1),
        ([raised(0, 0, "ValueError", "same"), raised(1, 1, "ValueError", "same")], 0),
        ([COMPLAINT], 0),
        ([raised(0, 0, "DistNetworkError", "?"), raised(1, 1, "ValueError", "x")], 1),
        ([raised(0, 0, "BrokenPipeError", "[Errno 32] Broken pipe"), BOOM], 2),
    ],
)
def test_the_cause_is_found_among_its_consequences(faults: list[Fault], rank: int) -> None:
    assert root_cause(faults).rank == rank
    assert root_cause(faults[::-1]).rank == rank


def test_an_end_after_the_end_and_an_error_without_words_are_told_too() -> None:
    assert exit_fault(1, 0, 3, "barrier", finished=True).reason == (
        "rank 1: ended after it had finished (exit code 3) (last in barrier)"
    )
    assert raised(0, 0, "KeyError", "").reason == "rank 0: KeyError"
