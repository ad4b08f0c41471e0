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
from .rank_process import FINISH_STATUSES

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
    return Fault(
        rank=rank,
        kind="exception" if name == "SIGABRT" else "signal",
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
    summary = next((rank.finish["summary"] for rank in ranks if rank.finish and rank.finish["summary"]), {})
    finishes = [rank.finish for rank in ranks if rank.finish is not None]
    worst = max(finishes, key=lambda finish: FINISH_STATUSES.index(finish["status"]), default=None)
    if interrupted_first:
        late = [rank.number for rank in ranks if rank.finish is None]
        status = "cancelled" if late or worst is None else worst["status"]
        more = f"; {_those(late)} did not stop in good order" if late else ""
        reason = None if status == "finished" else f"interrupted by {interrupts[0]}{more}"
        return Outcome(status=status, reason=reason, exit_code=INTERRUPTED, summary=summary)
    if stall is not None or faults:
        if stall is not None:
            details = "\n".join(f"stacks of rank {rank.number}: {rank.log}" for rank in ranks)
            outcome = Outcome(status="failed", reason=stall, exit_code=FAILED, details=details)
        else:
            outcome = _failed(ranks, faults)
        return replace(outcome, exit_code=INTERRUPTED) if interrupts else outcome
    assert worst is not None
    code = OK if worst["status"] == "finished" else FAILED
    return Outcome(status=worst["status"], reason=worst["reason"], exit_code=code, summary=summary)


def _failed(ranks: list[Rank], faults: list[Fault]) -> Outcome:
    cause = root_cause(faults)
    log = next(rank.log for rank in ranks if rank.number == cause.rank)
    return Outcome(
        status="failed",
        reason=cause.reason,
        exit_code=cause.exit_code,
        raised=cause.kind == "exception" and cause.suspect,
        details=f"{cause.traceback.rstrip()}\nlog of rank {cause.rank}: {log}".lstrip(),
    )


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


def is_stopped(pid: int) -> bool:
    """Whether all threads of the process are stopped, as by SIGSTOP (see proc(5)); False if it is gone."""
    try:
        # The command's name is in brackets and may contain anything, also brackets.
        stats = [file.read_text(errors="replace") for file in Path(f"/proc/{pid}/task").glob("*/stat")]
    except OSError:
        return False
    return bool(stats) and all(stat.rpartition(")")[2].split()[0] in "Tt" for stat in stats)
