"""Signals: processes that end with their parent, and interrupts that are counted instead of raised.

The forkserver imports this module first, which ties it to its supervisor: when the supervisor is killed, the
kernel kills the forkserver (its parent has ended), then every rank (whose parent has ended). SIGKILL also
ends a stopped process, which a watching thread could not.
"""

import ctypes
import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType, TracebackType
from typing import Any, Self

SUPERVISOR_VARIABLE = "DASO_BENCH_SUPERVISOR"
FORKSERVER_VARIABLE = "DASO_BENCH_FORKSERVER"
LEFT_TO_THE_SUPERVISOR = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_PR_SET_PDEATHSIG = 1  # linux/prctl.h


def die_with_parent(parent: int) -> None:
    """Have the kernel kill this process when its parent ends; exit at once if `parent` is gone already."""
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


@contextmanager
def signals_blocked() -> Iterator[None]:
    """LEFT_TO_THE_SUPERVISOR, blocked too in what is started meanwhile, until it unblocks them itself."""
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, LEFT_TO_THE_SUPERVISOR)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)


def signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


_interrupted = False


@contextmanager
def interrupt_remembered() -> Iterator[None]:
    """Ctrl-C raises KeyboardInterrupt and is remembered: an import in C may drop the exception and go on.

    Around all that a program does, in the main thread (in others it does nothing).
    """
    global _interrupted
    _interrupted = False
    here = threading.current_thread() is threading.main_thread()
    if not here or signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield
        return

    def remember(_number: int, _frame: FrameType | None) -> None:
        global _interrupted
        _interrupted = True
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGINT, remember)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def raise_if_interrupted() -> None:
    """Raises KeyboardInterrupt if there was one since `interrupt_remembered` was entered."""
    if _interrupted:
        raise KeyboardInterrupt


class Interrupts:
    """A context manager that counts SIGINT, SIGTERM, SIGHUP and SIGUSR2 and raises nothing, so that a run can
    stop in good order. Only the main thread gets signals.

    Batch systems send SIGUSR2 some time before they end a job: at its time limit, or when it is preempted.
    """

    def __init__(self) -> None:
        self.names: list[str] = []
        self._impatient = False
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR2):
                if signal.getsignal(number) is not signal.SIG_IGN:  # nohup, a background job of a script
                    self._before[number] = signal.signal(number, self._count)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)

    @contextmanager
    def impatiently(self) -> Iterator[None]:
        """Within the block an interrupt raises KeyboardInterrupt at once: no rank is there yet to stop."""
        self._impatient = True
        try:
            if self.names:
                raise KeyboardInterrupt
            yield
        finally:
            self._impatient = False

    def _count(self, number: int, _frame: FrameType | None) -> None:
        self.names.append(signal_name(number))
        if self._impatient:
            raise KeyboardInterrupt


if os.environ.get(SUPERVISOR_VARIABLE) == str(os.getppid()):
    guard(os.getppid())
