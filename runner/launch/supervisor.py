"""One attempt at a run: starts its ranks, watches them until all have ended, records the outcome."""

import json
import logging
import os
import signal
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import KW_ONLY, dataclass, field
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any, Self

from ...strategies.errors import ConfigError, MachineError
from ..machine.signals import Interrupts, raise_if_interrupted
from ..records.run_directory import INTERRUPTED, Outcome, RunDirectory
from .failures import Fault, Rank, exception_fault, exit_fault, is_stopped, judge, whereabouts

TICK_S = 0.25
LONGEST_TURN_S = 1.0
SILENCE_S = 5.0
REMOTE_SILENCE_S = 20.0  # of a rank on another machine, whose kernel cannot be asked
FIRST_BEAT_S = 30.0  # of such a rank, whose process starts
GRACE_S = 1.0
LEAVE_S = 10.0  # from the last rank's finish to the end of all processes
REAP_S = 3.0
PATIENCE_S = 30.0  # after Ctrl-C: for a step, an agreement and the checkpoint of a large model
STATUS_EVERY_S = 2.0
_PROGRESS_KEYS = ("step", "steps", "epoch", "epochs", "samples")

Event = dict[str, Any]
_log = logging.getLogger("daso_bench.supervisor")


class Ranks(ABC):
    """The ranks of an attempt; each launcher has a subclass that starts them.

    Entered under the run's lock, before the attempt begins: an error in `__enter__` changes nothing on disk.
    """

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        return

    def about(self) -> dict[str, Any]:
        """Keywords of `RunDirectory.begin_attempt`, written before the ranks start."""
        return {}

    @abstractmethod
    def start(self, started: list[Rank]) -> dict[str, Any]:
        """Start all ranks, adding each to `started` as soon as it could be killed.

        Returns the fields of the event "start". KeyboardInterrupt may be raised at any point.
        """

    def broken(self) -> str | None:
        """Why no rank can go on although none reports it; None if they can. Called often."""
        return None

    def conclude(self, outcome: Outcome, interrupts: list[str]) -> Outcome:
        """`outcome`, corrected by what the launcher knows. `interrupts`: signals to the supervisor."""
        return outcome

    def recorded(self, outcome: Outcome) -> None:
        """Called once status.json holds the outcome."""
        return


def run_attempt(
    directory: RunDirectory,
    ranks: Ranks,
    *,
    stall_s: float,
    patience_s: float = PATIENCE_S,
    on_event: Callable[[Event], None] | None = None,
) -> Outcome:
    """Start `ranks` on the run in `directory` and watch them to their end; status.json is kept up to date.

    `on_event` gets dicts with a `kind`: start (attempt, and what `ranks.start` returns), progress (rank,
    progress, call), interrupt (signal, wait_s), trouble (rank, reason), end (status, reason, exit_code).

    Raises ConfigError if another process runs this run, and whatever `ranks` raises; once the attempt has
    begun, it is then recorded as failed. Raises KeyboardInterrupt if an interrupt cannot be recorded.
    """
    with directory.lock(), ranks, _logging_to(directory.supervisor_log), Interrupts() as interrupts:
        raise_if_interrupted()
        attempt = directory.begin_attempt(**ranks.about())
        reporter = _Reporter(directory, on_event)
        started: list[Rank] = []
        supervisor = Supervisor(
            started,
            stall_s=stall_s,
            patience_s=patience_s,
            interrupts=interrupts,
            on_event=reporter,
            broken=ranks.broken,
        )
        try:
            with interrupts.impatiently():
                facts = ranks.start(started)
            reporter({"kind": "start", "attempt": attempt, **facts})
            outcome = supervisor.watch()
        except KeyboardInterrupt:
            supervisor.kill()
            reason = f"interrupted by {(interrupts.names or ['SIGINT'])[0]} at its start"
            outcome = Outcome(status="cancelled", reason=reason, exit_code=INTERRUPTED)
        except BaseException as error:
            supervisor.kill()
            directory.end_attempt("failed", f"supervisor: {type(error).__name__}: {error}")
            raise
        outcome = ranks.conclude(outcome, interrupts.names)
        try:
            reporter.end(outcome)
        except (ConfigError, MachineError) as error:  # no folder, no space: it cannot be written down
            if outcome.exit_code != INTERRUPTED:
                raise
            # A sweep takes those errors for this run's own and would go on with the next.
            raise KeyboardInterrupt(str(error)) from error
        ranks.recorded(outcome)
    return outcome


@dataclass
class _Reporter:
    """Passes events on, and keeps status.json and the supervisor's log up to date with them."""

    _directory: RunDirectory
    _on_event: Callable[[Event], None] | None
    _progress: dict[str, Any] = field(default_factory=dict)
    _written_s: float = field(default_factory=time.monotonic)

    def __call__(self, event: Event) -> None:
        if event["kind"] != "progress":
            _log.info("%s", event)
        elif event["rank"] == 0:
            self._progress = {key: event["progress"].get(key) for key in _PROGRESS_KEYS}
            if time.monotonic() - self._written_s >= STATUS_EVERY_S:
                self._written_s = time.monotonic()
                try:
                    self._directory.update(progress=self._progress)
                except (ConfigError, MachineError) as error:  # for show; the run itself may still finish
                    _log.warning("%s", error)
        if self._on_event is not None:
            self._on_event(event)

    def end(self, outcome: Outcome) -> None:
        summary = outcome.summary
        # As known at the start, or as checked by the ranks since.
        known = summary.get("validity") or self._directory.status()["timing"]
        untimed = summary.get("untimed", [])
        timing = {"valid": known["valid"] and not untimed, "reasons": [*known["reasons"], *untimed]}
        self._directory.end_attempt(
            outcome.status,
            outcome.reason,
            run_status=outcome.run_status,
            progress=self._progress,
            summary=summary or None,
            reached=summary.get("reached"),
            labels=summary.get("labels", []),
            attempt=outcome.attempt,
            timing=timing,
        )
        status = outcome.run_status or outcome.status
        self({"kind": "end", "status": status, "reason": outcome.reason, "exit_code": outcome.exit_code})


@contextmanager
def _logging_to(path: Path) -> Iterator[None]:
    try:
        handler = logging.FileHandler(path)
    except OSError as error:
        raise MachineError(f"{path}: cannot be written: {error.strerror}") from error
    handler.setFormatter(logging.Formatter("%(asctime)s supervisor %(levelname)s: %(message)s"))
    propagate = _log.propagate
    _log.addHandler(handler)
    _log.setLevel(logging.INFO)
    _log.propagate = False  # the command line prints what users need
    try:
        yield
    finally:
        _log.propagate = propagate
        _log.removeHandler(handler)
        handler.close()


@dataclass
class Supervisor:
    """`watch()` waits for the end of the ranks and kills what is left; `kill()` may be called at any time.

    The first failure of a rank ends the run. The loop never blocks: sockets are read without waiting, signals
    only raise a count, and its clock counts at most a second per turn: a supervisor (or a machine) that was
    stopped for a while must not blame the ranks.
    """

    ranks: list[Rank]
    _: KW_ONLY
    stall_s: float
    patience_s: float
    interrupts: Interrupts
    on_event: Callable[[Event], None]
    broken: Callable[[], str | None] = lambda: None  # why no rank can go on although none reports it
    _now_s: float = 0.0
    _last_turn: float = field(default_factory=time.monotonic)
    _changed_s: float = 0.0
    _asked_s: float | None = None
    _fault_s: float | None = None
    _finished_s: float | None = None
    _faults: list[Fault] = field(default_factory=list)
    _stall: str | None = None

    def watch(self) -> Outcome:
        """Wait for the end of the run, and kill and reap the ranks that are left."""
        while any(rank.exit_code is None for rank in self.ranks):
            self._look_for_broken()  # first: the ranks' own errors would hide the cause
            self._listen()
            self._look_for_frozen()
            self._look_for_stall()
            if self._answer_interrupts() or self._stall is not None or self._over():
                break
        self.kill()
        return judge(
            self.ranks,
            self._faults,
            stall=self._stall,
            interrupts=self.interrupts.names,
            interrupted_first=self._asked_s is not None
            and (self._fault_s is None or self._asked_s <= self._fault_s),
        )

    def kill(self) -> None:
        """Kill and reap every rank that is left (SIGKILL also ends a stopped one)."""
        for rank in self._running():
            if rank.process.exitcode is None and rank.process.pid is not None:
                with suppress(ProcessLookupError):
                    rank.process.kill()
        for rank in self._running():
            rank.process.join(REAP_S)
            if rank.process.exitcode is None:
                _log.error("rank %d (pid %s) does not die of SIGKILL", rank.number, rank.process.pid)
        for rank in self.ranks:
            rank.line.close()
            rank.line_open = False

    def _running(self) -> list[Rank]:
        return [rank for rank in self.ranks if rank.exit_code is None]

    def _listen(self) -> None:
        """Wait up to a tick for messages of the ranks, then read all that have arrived."""
        running = self._running()
        lines = [rank.line for rank in running if rank.line_open]
        ends = [rank.process.sentinel for rank in running if rank.process.sentinel >= 0]
        if lines or ends:
            wait([*lines, *ends], TICK_S)
        else:  # every line is closed, for a reason not known yet
            time.sleep(TICK_S)
        turn = time.monotonic()
        self._now_s += min(turn - self._last_turn, LONGEST_TURN_S)
        self._last_turn = turn
        for rank in running:
            # First the exit, then the messages: what a rank sent before its end has arrived by now.
            exit_code = rank.process.exitcode
            reported = False
            for message in rank.messages():
                reported |= self._take(rank, message)
            if exit_code is not None:
                self._record_end(rank, exit_code, reported)

    def _take(self, rank: Rank, message: dict[str, Any]) -> bool:
        """Note one message; True if it reports an exception."""
        rank.heard_s = self._now_s
        rank.beats += 1
        rank.call = message["call"]
        rank.signals = message.get("signals", [])
        # Compared as text: a loss that is NaN differs from itself and would pass for progress for ever.
        text = json.dumps([message["steps"], message["progress"]])
        if text != rank.progress_text:
            rank.progress, rank.progress_text = message["progress"], text
            self._changed_s = self._now_s
            self.on_event(
                {"kind": "progress", "rank": rank.number, "progress": rank.progress, "call": rank.call}
            )
        if message["kind"] == "finish":
            rank.finish = message
            self._changed_s = self._now_s
        if message["kind"] != "error":
            return False
        self._note(exception_fault(rank.number, len(self._faults), message))
        return True

    def _record_end(self, rank: Rank, exit_code: int, reported: bool) -> None:
        rank.exit_code = exit_code
        known = reported or any(fault.rank == rank.number for fault in self._faults)
        if known or (exit_code == 0 and rank.finish is not None):
            return
        finished = rank.finish is not None
        self._note(exit_fault(rank.number, len(self._faults), exit_code, rank.call, finished))

    def _note(self, fault: Fault) -> None:
        self._faults.append(fault)
        _log.error("%s\n%s", fault.reason, fault.traceback)
        if self._fault_s is None:
            self._fault_s = self._now_s
            self.on_event({"kind": "trouble", "rank": fault.rank, "reason": fault.reason})

    def _look_for_frozen(self) -> None:
        known = {fault.rank for fault in self._faults}
        for rank in self._running():
            silent_s = self._now_s - rank.heard_s
            if rank.number in known or rank.process.pid is None:
                continue
            if rank.host is None:
                # One that is merely busy, or waits with Python's lock held, is left to the stall watch.
                why = "it is stopped, as by SIGSTOP"
                frozen = silent_s >= SILENCE_S and is_stopped(rank.process.pid)
            else:
                why = f"{rank.host} gives no sign of it"
                frozen = silent_s >= (REMOTE_SILENCE_S if rank.beats else FIRST_BEAT_S) and rank.line_open
                rank.silent |= frozen
            if frozen and rank.process.exitcode is None:
                text = f"frozen: no heartbeat for {silent_s:.0f} s, {why}"
                seen = len(self._faults)
                self._note(Fault(rank=rank.number, kind="frozen", seen=seen, text=text, call=rank.call))

    def _look_for_broken(self) -> None:
        if self._stall is None and self._asked_s is None and not self._faults:
            why = self.broken()
            if why is not None:
                self._give_up(f"{why}; {whereabouts(self._running())}")

    def _look_for_stall(self) -> None:
        if self._now_s - self._changed_s < self.stall_s or self._asked_s is not None or self._faults:
            return
        if self._stall is None:
            self._give_up(f"no progress for {self.stall_s:g} s; {whereabouts(self._running())}")

    def _give_up(self, why: str) -> None:
        self._stall = why
        _log.error("%s; the stacks of all threads are in the ranks' logs", why)
        for rank in self._running():
            if rank.host is not None:
                with suppress(OSError):
                    rank.line.send(b"stacks\n")
            elif rank.process.pid is not None and rank.beats:  # before the first beat it has no handler
                with suppress(ProcessLookupError):
                    os.kill(rank.process.pid, signal.SIGUSR1)
        time.sleep(1.0 if any(rank.host for rank in self._running()) else 0.2)  # to write the stacks
        self.on_event({"kind": "trouble", "rank": None, "reason": why})

    def _answer_interrupts(self) -> bool:
        """Ask the ranks to stop at the first interrupt; True once they are to be killed."""
        names = self.interrupts.names
        if names and self._asked_s is None:
            self._asked_s = self._now_s
            _log.warning("%s: asking the ranks to stop", names[0])
            for rank in self._running():
                with suppress(OSError):  # it is gone, or stopped with a full line
                    rank.line.send(b"interrupt\n")
            self.on_event({"kind": "interrupt", "signal": names[0], "wait_s": self.patience_s})
        if self._asked_s is None:
            return False
        return len(names) > 1 or self._now_s - self._asked_s >= self.patience_s

    def _over(self) -> bool:
        """Whether the time is up: after a fault for more reports, after the finish of all for their exits."""
        if self._fault_s is not None:
            return self._now_s - self._fault_s >= GRACE_S
        if all(rank.finish is not None for rank in self.ranks):
            self._finished_s = self._now_s if self._finished_s is None else self._finished_s
            if self._now_s - self._finished_s >= LEAVE_S:
                _log.warning("all ranks have finished, some do not end; killed")
                return True
        return False
