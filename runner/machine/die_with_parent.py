"""Ends a process when its parent ends. The forkserver imports this first, which ties it to its supervisor.

When the supervisor is killed, the kernel kills the forkserver (its parent is gone), then every rank (their
parent is gone). SIGKILL also ends a stopped process, which a watching thread could not. Where the kernel has
no such signal (macOS), the forkserver exits when the pipe from the supervisor closes, and the thread of each
rank (`rank_process.Link`) ends its rank; a stopped rank then waits for its SIGCONT.
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
    """Have the kernel kill this process when its parent ends; exit at once if `parent` is gone already."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:  # it ended before the kernel knew of this process
        os._exit(1)


def guard(supervisor: int) -> None:
    """Make this process the forkserver of the process `supervisor`.

    Only the supervisor handles signals to the whole process group (Ctrl-C, `timeout`, a batch system's
    SIGTERM): a forkserver that died of one would end the ranks before they could save a checkpoint. The ranks
    inherit that, except for SIGTERM, which is a stop request to them.
    """
    os.environ[FORKSERVER_VARIABLE] = str(os.getpid())
    for number in LEFT_TO_THE_SUPERVISOR:
        signal.signal(number, signal.SIG_IGN)
    # The supervisor started us with these blocked, so that none could arrive before the line above.
    signal.pthread_sigmask(signal.SIG_UNBLOCK, LEFT_TO_THE_SUPERVISOR)
    die_with_parent(supervisor)


if os.environ.get(SUPERVISOR_VARIABLE) == str(os.getppid()):
    guard(os.getppid())
