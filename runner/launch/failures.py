"""The supervisor's record of each rank, the root cause of several failures, and the outcome of the run.

When one rank dies the others soon complain about the lost connection, often before the death is seen.
"""

import json
import re
import socket
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, Protocol

from ..machine.signals import signal_name
from ..records.run_directory import FAILED, INTERRUPTED, OK, Outcome

Kind = Literal["signal", "frozen", "exit", "exception"]

# Messages of torch.distributed (gloo, NCCL, TCPStore), sockets and pipes when another process has ended.
_CONSEQUENCE = re.compile(
    r"connection (was )?(closed|reset|refused|aborted)|broken pipe|closed by peer|reset by peer|"
    r"socket (timeout|closed)|timed out waiting|recvValue failed|failed to recv|failed to send|"
    r"DistNetworkError|remote process|end of file",
    re.IGNORECASE,
)
_CONSEQUENCE_TYPES = (
    "DistNetworkError",
    "DistStoreError",
    "ConnectionResetError",
    "ConnectionRefusedError",
    "ConnectionAbortedError",
    "BrokenPipeError",
)
LOST = 254  # the exit code of a process on another machine that ended for an unknown reason
# A rank that aborts (SIGABRT) mostly does so because a helper thread of gloo or NCCL lost its peer.
_RANKS_OF_KINDS: dict[Kind, int] = {"signal": 0, "frozen": 0, "exit": 1, "exception": 2}
# The worst of the ranks' statuses is the run's.
_STATUSES = ("finished", "cancelled", "timed_out", "diverged")
_FORKSERVER_GONE = 255  # the exit code that multiprocessing reports when the forkserver has ended


@dataclass(frozen=True)
class Vitals:
    """The states of a process's threads and the processor time it has used, from the kernel."""

    states: str  # one letter per thread, see proc(5): R running, S asleep, D in the disk, T and t stopped
    cpu_ticks: int


class RankHandle(Protocol):
    """What the supervisor needs of a process; multiprocessing's processes have it.

    `sentinel` is readable once the process has ended; -1 if only the closed line shows the end.
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
    progress_text: str = "[0, {}]"  # of a beat without progress
    call: str = ""
    silent: bool = False  # given up after a long silence, on a machine whose kernel cannot be asked
    signals: list[str] = field(default_factory=list)  # sent to the rank itself
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
class Fault:
    """What went wrong in one rank. `seen`: its place in the order in which the supervisor learned of them."""

    rank: int
    kind: Kind
    seen: int
    text: str  # "RuntimeError: boom", "killed by SIGKILL"
    call: str = ""  # the collective the rank was in, "" if none
    traceback: str = ""
    exit_code: int = 1
    suspect: bool = True  # False: a consequence of another rank's end

    @property
    def reason(self) -> str:
        where = f" (last in {self.call})" if self.call else ""
        return f"rank {self.rank}: {self.text}{where}"


def root_cause(faults: list[Fault]) -> Fault:
    """The fault that explains the others: suspects first, then deaths before exceptions, then order."""
    return min(faults, key=lambda fault: (not fault.suspect, _RANKS_OF_KINDS[fault.kind], fault.seen))


def exception_fault(rank: int, seen: int, report: dict[str, Any]) -> Fault:
    """The fault of a rank that reported an exception."""
    kind, message = str(report["type"]), str(report["message"])
    consequence = kind in _CONSEQUENCE_TYPES or _CONSEQUENCE.search(message) is not None
    first_line = message.strip().split("\n", 1)[0]
    return Fault(
        rank=rank,
        kind="exception",
        seen=seen,
        text=f"{kind}: {first_line}" if first_line else kind,
        call=str(report["call"]),
        traceback=str(report["traceback"]),
        exit_code=int(report["exit_code"]),
        suspect=not consequence,
    )


def exit_fault(rank: int, seen: int, exit_code: int, call: str, finished: bool) -> Fault:
    """The fault of a rank that ended without a report (negative `exit_code`: by that signal)."""
    if exit_code == LOST:
        text = "its connection closed for an unknown reason (killed, or its node is gone)"
        return Fault(rank=rank, kind="signal", seen=seen, text=text, call=call)
    if exit_code >= 0:
        when = "after it had finished" if finished else "without finishing"
        text = f"ended {when} (exit code {exit_code})"
        return Fault(rank=rank, kind="exit", seen=seen, text=text, call=call)
    name = signal_name(-exit_code)
    hint = "; by hand, or by the kernel for want of memory" if name == "SIGKILL" else ""
    abort = name == "SIGABRT"
    return Fault(
        rank=rank,
        kind="exception" if abort else "signal",
        seen=seen,
        text=f"killed by {name}{hint}",
        call=call,
    )


def judge(
    ranks: list[Rank],
    faults: list[Fault],
    *,
    stall: str | None,
    interrupts: list[str],
    interrupted_first: bool,
) -> Outcome:
    """The outcome of a run whose ranks have all ended.

    `stall`: why it was given up while its ranks were alive (no progress, or no network any more).
    `interrupts`: names of the signals that came, in order; `interrupted_first`: the ranks were asked to stop
    before anything went wrong, so faults after that are part of the stopping. After an interrupt the
    exit code is INTERRUPTED whatever the status: a sweep must not go on.
    """
    if interrupted_first:
        return _interrupted(ranks, interrupts[0])
    if stall is not None or faults:
        outcome = _stalled(ranks, stall) if stall is not None else _failed(ranks, faults)
        return replace(outcome, exit_code=INTERRUPTED) if interrupts else outcome
    finishes = [rank.finish for rank in ranks if rank.finish is not None]
    worst = max(finishes, key=lambda finish: _STATUSES.index(finish["status"]))
    status = worst["status"]
    return Outcome(
        status=status,
        reason=worst["reason"],
        exit_code=OK if status == "finished" else FAILED,
        summary=_summary(ranks),
    )


def _interrupted(ranks: list[Rank], signal: str) -> Outcome:
    late = [rank.number for rank in ranks if rank.finish is None]
    statuses = [rank.finish["status"] for rank in ranks if rank.finish is not None]
    status = "cancelled" if late else max(statuses, key=_STATUSES.index)
    more = f"; {_those(late)} did not stop in good order" if late else ""
    reason = None if status == "finished" else f"interrupted by {signal}{more}"
    return Outcome(status=status, reason=reason, exit_code=INTERRUPTED, summary=_summary(ranks))


def _stalled(ranks: list[Rank], stall: str) -> Outcome:
    details = "\n".join(f"stacks of rank {rank.number}: {rank.log}" for rank in ranks)
    return Outcome(status="failed", reason=stall, exit_code=FAILED, details=details)


def _failed(ranks: list[Rank], faults: list[Fault]) -> Outcome:
    cause = root_cause(faults)
    if all(rank.exit_code == _FORKSERVER_GONE for rank in ranks):
        cause = replace(cause, text="died with all others: the forkserver that made them is gone (killed?)")
    log = next(rank.log for rank in ranks if rank.number == cause.rank)
    return Outcome(
        status="failed",
        reason=cause.reason,
        exit_code=cause.exit_code,
        raised=cause.kind == "exception" and cause.suspect,
        details=f"{cause.traceback.rstrip()}\nlog of rank {cause.rank}: {log}".lstrip(),
    )


def _summary(ranks: list[Rank]) -> dict[str, Any]:
    return next((rank.finish["summary"] for rank in ranks if rank.finish and rank.finish["summary"]), {})


def whereabouts(ranks: list[Rank]) -> str:
    """Which ranks are in which collective: a rank that differs from all others is the suspect."""
    places: dict[str, list[int]] = {}
    for rank in ranks:
        places.setdefault(rank.call, []).append(rank.number)
    return ", ".join(
        f"{_those(numbers)} {f'last in {call}' if call else 'outside collectives'}"
        for call, numbers in places.items()
    )


def _those(numbers: list[int]) -> str:
    return f"rank{'s' * (len(numbers) != 1)} {', '.join(map(str, numbers))}"


def vitals(pid: int, proc: Path = Path("/proc")) -> Vitals | None:
    """The vitals of process `pid`; None if it is gone or the kernel has no /proc (macOS)."""
    states, ticks = "", 0
    try:
        for task in (proc / str(pid) / "task").iterdir():
            # The command's name is in brackets and may contain anything, also brackets.
            fields = (task / "stat").read_text(errors="replace").rpartition(")")[2].split()
            states += fields[0]
            ticks += int(fields[11]) + int(fields[12])
    except (OSError, IndexError, ValueError):
        return None
    return Vitals(states, ticks)


def stopped_or_stuck(before: Vitals | None, now: Vitals | None, silent_ticks: float) -> str | None:
    """Why a rank that sent no heartbeat for `silent_ticks` is called frozen, or None if it is merely busy.

    Busy: a thread runs, waits for a core or the disk, or the process used a tenth of the time (native code
    that holds Python's lock, an overloaded machine). The stall watch looks after those.
    """
    if now is None:
        return "it is silent"
    if all(state in "Tt" for state in now.states):
        return "it is stopped, as by SIGSTOP"
    if any(state in "RD" for state in now.states):
        return None
    if before is not None and now.cpu_ticks - before.cpu_ticks >= 0.1 * silent_ticks:
        return None
    return "it sleeps with Python's lock held"
