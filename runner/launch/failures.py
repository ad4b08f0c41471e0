"""What went wrong in a rank, said in words, and which of several troubles came first.

When one rank dies the others soon complain about the lost connection, often before the death is seen.
"""

import re
import signal
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

Kind = Literal["signal", "frozen", "exit", "exception"]

# How torch.distributed (gloo, NCCL, TCPStore), sockets and pipes say that another process is gone.
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
LOST = 254  # the exit code of a process on another machine of whose end nobody knows the reason
# A rank that aborts (SIGABRT) mostly does so because a helper thread of gloo or NCCL lost its peer.
_RANKS_OF_KINDS: dict[Kind, int] = {"signal": 0, "frozen": 0, "exit": 1, "exception": 2}


@dataclass(frozen=True, kw_only=True)
class Fault:
    """One rank's trouble. `seen`: its place in the order in which the supervisor learned of all troubles."""

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
        text = "its line closed and nobody says why (killed, or its node is gone)"
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


def signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


@dataclass(frozen=True)
class Vitals:
    """What the kernel says of a process: the states of its threads and the processor time it has used."""

    states: str  # one letter per thread, see proc(5): R running, S asleep, D in the disk, T and t stopped
    cpu_ticks: int


def vitals(pid: int, proc: Path = Path("/proc")) -> Vitals | None:
    """The vitals of process `pid`; None if it is gone or the kernel has no /proc (macOS)."""
    states, ticks = "", 0
    try:
        for task in (proc / str(pid) / "task").iterdir():
            # The command's name stands in brackets and may hold anything, brackets included.
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
