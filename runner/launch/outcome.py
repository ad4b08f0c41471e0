"""A rank as its supervisor saw it, and from all of them the verdict: how the run ended and why."""

import json
import socket
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

from ..records.exit_codes import FAILED, INTERRUPTED, OK
from .failures import Fault, Vitals, root_cause

# The worst of the ranks' words is the run's.
_WORDS = ("finished", "cancelled", "timed_out", "diverged")
_FORKSERVER_GONE = 255  # the exit code multiprocessing reports when nobody is left to tell it


class RankHandle(Protocol):
    """What the supervisor needs of a process; multiprocessing's processes have it.

    `sentinel` is readable once the process has ended, -1 where only the rank's line can tell that.
    """

    @property
    def pid(self) -> int | None: ...
    @property
    def sentinel(self) -> int: ...
    @property
    def exitcode(self) -> int | None: ...
    def join(self, timeout: float | None = None) -> None: ...
    def kill(self) -> None: ...


@dataclass(kw_only=True)
class Rank:
    """One rank as its supervisor sees it; times are seconds of the supervisor's own clock."""

    number: int
    process: RankHandle
    line: socket.socket  # not blocking
    log: Path
    host: str | None = None  # of a process on a machine that may not be the supervisor's
    heard_s: float = 0.0
    beats: int = 0
    vitals: Vitals | None = None
    progress: dict[str, Any] = field(default_factory=dict)
    progress_text: str = "[0, {}]"  # of a beat that has nothing to tell
    call: str = ""
    silent: bool = False  # given up for want of any sign, on a machine that cannot be asked
    signals: list[str] = field(default_factory=list)  # what came to the rank itself, beside its supervisor
    finish: dict[str, Any] | None = None
    exit_code: int | None = None
    line_open: bool = True
    _rest: bytes = b""

    def messages(self) -> list[dict[str, Any]]:
        """All whole messages that have arrived; a line cut by the rank's death is dropped."""
        if not self.line_open:
            return []
        chunks = [self._rest]
        try:
            while chunk := self.line.recv(1 << 16):
                chunks.append(chunk)
            self.line_open = False
        except BlockingIOError:
            pass
        except ConnectionError:
            self.line_open = False
        *lines, self._rest = b"".join(chunks).split(b"\n")
        return [json.loads(line) for line in lines]


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """How a run ended. `reason` is one line; `details` has the failing rank's traceback and log."""

    status: str
    reason: str | None
    exit_code: int
    summary: dict[str, Any] | None
    details: str = ""
    raised: bool = False  # failed by an exception of a rank's own, not by its death or somebody else's


def judge(
    ranks: list[Rank],
    faults: list[Fault],
    *,
    stall: str | None,
    interrupts: list[str],
    interrupted_first: bool,
) -> Outcome:
    """The verdict on a run whose ranks are all gone.

    `stall`: why it was given up while its ranks were alive (no progress, or no network any more).
    `interrupts`: names of the signals that came, in order; `interrupted_first`: the ranks were asked to stop
    before anything went wrong, so troubles after that count as the stopping. Whatever a run came to, after an
    interrupt the exit code says so: a sweep must not go on.
    """
    if interrupted_first:
        return _interrupted(ranks, interrupts[0])
    if stall is not None or faults:
        outcome = _stalled(ranks, stall) if stall is not None else _failed(ranks, faults)
        return replace(outcome, exit_code=INTERRUPTED) if interrupts else outcome
    finishes = [rank.finish for rank in ranks if rank.finish is not None]
    worst = max(finishes, key=lambda finish: _WORDS.index(finish["status"]))
    status = worst["status"]
    return Outcome(
        status=status,
        reason=worst["reason"],
        exit_code=OK if status == "finished" else FAILED,
        summary=_summary(ranks),
    )


def _interrupted(ranks: list[Rank], signal: str) -> Outcome:
    late = [rank.number for rank in ranks if rank.finish is None]
    words = [rank.finish["status"] for rank in ranks if rank.finish is not None]
    status = "cancelled" if late else max(words, key=_WORDS.index)
    more = f"; {_those(late)} did not stop in good order" if late else ""
    reason = None if status == "finished" else f"interrupted by {signal}{more}"
    return Outcome(status=status, reason=reason, exit_code=INTERRUPTED, summary=_summary(ranks))


def _stalled(ranks: list[Rank], stall: str) -> Outcome:
    details = "\n".join(f"stacks of rank {rank.number}: {rank.log}" for rank in ranks)
    return Outcome(status="failed", reason=stall, exit_code=FAILED, summary=None, details=details)


def _failed(ranks: list[Rank], faults: list[Fault]) -> Outcome:
    cause = root_cause(faults)
    if all(rank.exit_code == _FORKSERVER_GONE for rank in ranks):
        cause = replace(cause, text="died with all others: the forkserver that made them is gone (killed?)")
    log = next(rank.log for rank in ranks if rank.number == cause.rank)
    return Outcome(
        status="failed",
        reason=cause.reason,
        exit_code=cause.exit_code,
        summary=None,
        raised=cause.kind == "exception" and cause.suspect,
        details=f"{cause.traceback.rstrip()}\nlog of rank {cause.rank}: {log}".lstrip(),
    )


def _summary(ranks: list[Rank]) -> dict[str, Any] | None:
    return next((rank.finish["summary"] for rank in ranks if rank.finish and rank.finish["summary"]), None)


def whereabouts(ranks: list[Rank]) -> str:
    """Which ranks are in which collective: the odd one out is the one to look at."""
    places: dict[str, list[int]] = {}
    for rank in ranks:
        places.setdefault(rank.call, []).append(rank.number)
    return ", ".join(
        f"{_those(numbers)} {f'last in {call}' if call else 'outside collectives'}"
        for call, numbers in places.items()
    )


def _those(numbers: list[int]) -> str:
    return f"rank{'s' * (len(numbers) != 1)} {', '.join(map(str, numbers))}"
