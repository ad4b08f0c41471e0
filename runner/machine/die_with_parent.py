"""Imported first by the forkserver (its only effect at import, and only there): ties it to its supervisor.

Order of death when the supervisor is killed: the kernel kills the forkserver (its parent is gone), then every
rank (their parent is gone). SIGKILL also ends a stopped process, which a watching thread could not. Where the
kernel offers no such signal (macOS), the forkserver leaves when the pipe from the supervisor closes, and the
thread of each rank (`rank_process.Link`) ends its rank; a stopped rank then waits for its SIGCONT.
"""

import ctypes
import os
import signal
import sys

SUPERVISOR_VARIABLE = "DASO_BENCH_SUPERVISOR"
FORKSERVER_VARIABLE = "DASO_BENCH_FORKSERVER"
LEFT_TO_THE_SUPERVISOR = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_PR_SET_PDEATHSIG = 1  # linux/prctl.h


def die_with_parent(parent: int) -> None:
    """Have the kernel kill this process when its parent ends; leaves at once if `parent` is gone already."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:  # it ended before the kernel knew of our parent check
        os._exit(1)


def guard(supervisor: int) -> None:
    """Make this process the forkserver of the process `supervisor`.

    Signals to the whole process group (Ctrl-C, `timeout`, a batch system's SIGTERM) are the supervisor's to
    answer: a forkserver that died of one would take the ranks with it before they could stop in good order.
    The ranks inherit that, but for SIGTERM, which they take as a request to stop.
    """
    os.environ[FORKSERVER_VARIABLE] = str(os.getpid())
    for number in LEFT_TO_THE_SUPERVISOR:
        signal.signal(number, signal.SIG_IGN)
    # The supervisor started us with these blocked, so that none could hit before the line above.
    signal.pthread_sigmask(signal.SIG_UNBLOCK, LEFT_TO_THE_SUPERVISOR)
    die_with_parent(supervisor)


if os.environ.get(SUPERVISOR_VARIABLE) == str(os.getppid()):
    guard(os.getppid())
