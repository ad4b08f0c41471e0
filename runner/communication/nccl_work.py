"""NCCL operations: GPU streams wait for each other, the host waits for none of them.

    computing   … began | next steps …                      | wait | after
    NCCL                | the operation                 |
    side                | waits for it                  ended

The event `ended` is recorded on a side stream: `is_completed` and `transfer_ns` query it, `wait` lets the
computing stream wait for it. Each group has its own side stream: on a common one, an end would be recorded
only after an earlier all-reduce of another group that waits for a slow node.
"""

import threading
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from ...strategies.communicator import Work
from .cuda_timing import Mark, between, is_over


class Waitable(Protocol):
    """A started operation of `torch.distributed`; `wait` lets the present stream wait for it."""

    def wait(self) -> Any: ...


class Streams:
    """The current stream of a rank's GPU, and a side stream of each group."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._sides: dict[Any, torch.cuda.Stream] = {}

    def mark(self) -> torch.cuda.Event:
        """An event, recorded on the current stream."""
        event = torch.cuda.Event(enable_timing=True)
        event.record(torch.cuda.current_stream(self._device))
        return event

    def side(self, of: Any) -> AbstractContextManager[Any]:
        """Inside, the current stream is the side stream of `of`."""
        if of not in self._sides:
            self._sides[of] = torch.cuda.Stream(self._device)
        return torch.cuda.stream(self._sides[of])

    def await_mark(self, mark: Any) -> None:
        """Let the current stream wait for the event `mark`."""
        torch.cuda.current_stream(self._device).wait_event(mark)


class Spans:
    """Intervals of a GPU's time, summed when they are over."""

    def __init__(self) -> None:
        self._open: deque[tuple[Mark, Mark]] = deque()
        self._sum_ns = 0

    def add(self, start: Mark, end: Mark) -> None:
        """Add an interval that may still go on; sum the earlier ones that are over."""
        self._open.append((start, end))
        self._read()

    def take_ns(self) -> int:
        """Nanoseconds of the intervals that ended since the last call."""
        self._read()
        taken, self._sum_ns = self._sum_ns, 0
        return taken

    def _read(self) -> None:
        while self._open and is_over(self._open[0][1]):
            self._sum_ns += between(*self._open.popleft())


@dataclass
class Launched:
    """An operation by its name; `over` says whether it has ended, without waiting."""

    name: str
    over: Callable[[], bool] = lambda: False


class InFlight:
    """Operations launched on a GPU that may not be over, in order.

    The host runs ahead, so only this shows in which operation a GPU waits for other ranks. Any thread may
    read it.
    """

    def __init__(self) -> None:
        self._launched: deque[Launched] = deque()
        self._lock = threading.Lock()

    def add(self, name: str) -> Launched:
        """Note an operation that is about to be launched; the caller then sets `over`."""
        launched = Launched(name)
        with self._lock:
            self._drop()
            self._launched.append(launched)
        return launched

    def oldest(self) -> str:
        """The first operation that is not over, "" if all are."""
        with self._lock, suppress(RuntimeError):  # a broken GPU: the thread that trains raises
            self._drop()
        with self._lock:
            return self._launched[0].name if self._launched else ""

    def _drop(self) -> None:
        while self._launched and self._launched[0].over():
            self._launched.popleft()


class DeviceWork(Work):
    """Operations started together.

    Args:
        began: event of the computing stream at their start.
        of: the group whose side stream waits for them.
        tensors: kept until `wait`, so that their memory is not reused while an operation uses it.
        note: called with the start and the end of the computing stream's wait.
    """

    def __init__(
        self,
        works: Sequence[Waitable],
        *,
        streams: Streams,
        began: Mark,
        of: Any,
        tensors: Sequence[Tensor],
        note: Callable[[Mark, Mark], None],
    ) -> None:
        self._streams, self._began, self._note = streams, began, note
        self._tensors: Sequence[Tensor] = tensors
        with streams.side(of):
            for work in works:
                work.wait()
            self._ended = streams.mark()

    def wait(self) -> None:
        before = self._streams.mark()
        self._streams.await_mark(self._ended)
        self._note(before, self._streams.mark())
        self._tensors = ()

    def is_completed(self) -> bool:
        return is_over(self._ended)

    def transfer_ns(self) -> int | None:
        return between(self._began, self._ended) if self.is_completed() else None
