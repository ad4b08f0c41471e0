"""Interrupts (Ctrl-C and other signals) during a run: counted, not raised, so that the run stops in order.

SIGUSR2 is how batch systems say beforehand that a job's time is over, or that others need its nodes.
"""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType, TracebackType
from typing import Any, Self

from .failures import signal_name


class Remembered:
    """Ctrl-C as KeyboardInterrupt, and kept in mind: an import in C may drop the exception and go on.

    Entered in the main thread around all that a program does (in others it does nothing).
    """

    def __init__(self) -> None:
        self.asked = False
        self._before: Any = None

    def __enter__(self) -> Self:
        self.asked = False
        here = threading.current_thread() is threading.main_thread()
        if here and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
            self._before = signal.signal(signal.SIGINT, self._raise)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._before is not None:
            signal.signal(signal.SIGINT, self._before)

    def heed(self) -> None:
        """Raises KeyboardInterrupt if there was one before."""
        if self.asked:
            raise KeyboardInterrupt

    def _raise(self, _number: int, _frame: FrameType | None) -> None:
        self.asked = True
        raise KeyboardInterrupt


remembered = Remembered()


class Interrupts:
    """Counts SIGINT, SIGTERM, SIGHUP, SIGUSR2 while it is entered (in the main thread: others get none)."""

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
        """Raise KeyboardInterrupt at once within the block: nobody is there yet who could stop in order."""
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
