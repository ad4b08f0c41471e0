"""Operations of NCCL: streams of a GPU wait for each other, the host waits for none of them.

    computing   … began | next steps …                      | wait | after
    NCCL                | the operation                 |
    side                | waits for it                  ended

`ended` tells when it was over without anybody asking: `is_completed` and `transfer_ns` look at it, `wait`
lets the computing stream wait for it. Each group has a side stream of its own: behind an all-reduce that
waits for a slow node, another group's end would be told too late.
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
    """The streams of a rank's GPU, as far as they are needed here."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._sides: dict[Any, torch.cuda.Stream] = {}

    def mark(self) -> torch.cuda.Event:
        """The present moment of the present stream."""
        event = torch.cuda.Event(enable_timing=True)
        event.record(torch.cuda.current_stream(self._device))
        return event

    def side(self, of: Any) -> AbstractContextManager[Any]:
        """Inside, the present stream is that which belongs to `of`."""
        if of not in self._sides:
            self._sides[of] = torch.cuda.Stream(self._device)
        return torch.cuda.stream(self._sides[of])

    def await_mark(self, mark: Any) -> None:
        """The present stream goes on once `mark` is over."""
        torch.cuda.current_stream(self._device).wait_event(mark)


class Spans:
    """Stretches of a GPU's time, summed when they are over."""

    def __init__(self) -> None:
        self._open: deque[tuple[Mark, Mark]] = deque()
        self._sum_ns = 0

    def add(self, start: Mark, end: Mark) -> None:
        """A stretch that may still go on; those before it that are over are added up."""
        self._open.append((start, end))
        self._read()

    def take_ns(self) -> int:
        """Nanoseconds of those that are over since the last call."""
        self._read()
        taken, self._sum_ns = self._sum_ns, 0
        return taken

    def _read(self) -> None:
        while self._open and is_over(self._open[0][1]):
            self._sum_ns += between(*self._open.popleft())


@dataclass
class Launched:
    """An operation by its name; `over` tells whether it is, without waiting."""

    name: str
    over: Callable[[], bool] = lambda: False


class InFlight:
    """What a GPU was given and may still be at, in order. The host runs on, so that nothing else tells where
    a rank stands still for others; any thread may ask.
    """

    def __init__(self) -> None:
        self._launched: deque[Launched] = deque()
        self._lock = threading.Lock()

    def add(self, name: str) -> Launched:
        """An operation that is about to be launched; who launched it says how to tell that it is over."""
        launched = Launched(name)
        with self._lock:
            self._drop()
            self._launched.append(launched)
        return launched

    def oldest(self) -> str:
        """The first that is not over, "" if all are."""
        with self._lock, suppress(RuntimeError):  # a broken GPU: the thread that trains hears of it
            self._drop()
        with self._lock:
            return self._launched[0].name if self._launched else ""

    def _drop(self) -> None:
        while self._launched and self._launched[0].over():
            self._launched.popleft()


class DeviceWork(Work):
    """Operations started together.

    Args:
        began: the moment of the computing stream at which they were started.
        of: whose side stream is to wait for them.
        tensors: kept until `wait`: their memory must not go to others while the operation uses it.
        note: is told from when to when the computing stream waited.
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
