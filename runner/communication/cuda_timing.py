"""CUDA events: times of steps and of NCCL operations without host synchronisation.

Events are recorded while a step is launched. The host goes on to the next step and reads them later, and the
stop flag with them, one step late:

    host   launch step 1 | launch step 2, read the stop flag of 1 and times of ended steps | launch step 3 …
    GPU                  | step 1                             | step 2                     | step 3 …

The host never waits for the step that it has just launched, so the GPU always has work in its queue; and it
is never more than one step ahead, since it waits for the stop flag of the step before. On a CPU, marks are
times of the host's clock, and each step is read at its own end.

For NCCL operations GPU streams wait for each other, and the host waits for none of them:

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
from typing import Any

import torch
from torch import Tensor

from ...strategies.communicator import Work
from ...strategies.replica import StepTimes

Mark = int | torch.cuda.Event
"""A point in time: nanoseconds of this rank's clock, or an event in a GPU's stream."""


class StepTimings:
    """Times of launched steps, oldest first, read when they are over; and their sums for the clock."""

    def __init__(self) -> None:
        self._open: deque[tuple[Mark, Callable[[], StepTimes]]] = deque()
        self.compute_ns = self.exposed_ns = 0

    def add(
        self,
        samples_of_rank: tuple[int, ...],
        *,
        forward: Sequence[tuple[Mark, Mark]],
        started: Mark,
        computed: Mark,
        done: Mark,
    ) -> None:
        """Note a step that was launched.

        forward: of each part; computed, done: all gradients are computed, and summed.
        """

        def read() -> StepTimes:
            compute = between(started, computed)
            self.compute_ns += compute
            self.exposed_ns += between(computed, done)
            return StepTimes(samples_of_rank, sum(between(*part) for part in forward), compute)

        self._open.append((done, read))

    def known(self) -> list[StepTimes]:
        """The times of steps that are over and were not read before; never waits."""
        times = []
        while self._open and is_over(self._open[0][0]):
            times.append(self._open.popleft()[1]())
        return times

    def wait_pending(self) -> list[StepTimes]:
        """`known`, once all steps are over; waits for them."""
        if self._open and not isinstance(done := self._open[-1][0], int):
            done.synchronize()
        return self.known()

    def take_sums(self) -> tuple[int, int]:
        """Nanoseconds of computing and of exposed sums since the last call."""
        sums, self.compute_ns, self.exposed_ns = (self.compute_ns, self.exposed_ns), 0, 0
        return sums


def one_step_late(make_event: Callable[[], torch.cuda.Event], *, pinned: bool) -> Callable[[Tensor], float]:
    """A function that copies a step's number [1] to the host and returns that of the step before, 0 at first.

    Always one step later, even where it could be read sooner: all ranks must act on it in the same step.
    """
    before: list[tuple[Tensor, torch.cuda.Event]] = []

    def next_number(value: Tensor) -> float:
        copy = torch.empty(value.shape, dtype=value.dtype, pin_memory=pinned)
        copy.copy_(value, non_blocking=True)
        event = make_event()
        event.record()
        before.append((copy, event))
        if len(before) == 1:
            return 0.0
        number, copied = before.pop(0)
        copied.synchronize()  # of the step before; the step just launched keeps the GPU busy
        return float(number)

    return next_number


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


class InFlight:
    """Operations launched on a GPU that may not be over, in order.

    The host runs ahead, so only this shows in which operation a GPU waits for other ranks. Any thread may
    read it.
    """

    def __init__(self) -> None:
        self._launched: deque[tuple[str, list[Callable[[], bool]]]] = deque()
        self._lock = threading.Lock()

    def add(self, name: str) -> Callable[[Callable[[], bool]], None]:
        """Note an operation that is about to be launched.

        Once it is launched, the caller gives the returned function what says, without waiting, whether it is
        over.
        """
        over: list[Callable[[], bool]] = []
        with self._lock:
            self._drop()
            self._launched.append((name, over))
        return over.append

    def oldest(self) -> str:
        """The first operation that is not over, "" if all are."""
        with self._lock, suppress(RuntimeError):  # a broken GPU: the thread that trains raises
            self._drop()
        with self._lock:
            return self._launched[0][0] if self._launched else ""

    def _drop(self) -> None:
        while self._launched and any(over() for over in self._launched[0][1]):
            self._launched.popleft()


class DeviceWork(Work):
    """NCCL operations started together.

    works: of `torch.distributed`; began: event of the computing stream at their start; of: the group whose
    side stream waits for them; tensors: kept until `wait`, so that their memory is not reused while an
    operation uses it; note: called with the start and the end of the computing stream's wait.
    """

    def __init__(
        self,
        works: Sequence[Any],
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


def between(start: Mark, end: Mark) -> int:
    """Nanoseconds between two marks that have both passed."""
    if isinstance(start, int) or isinstance(end, int):
        assert isinstance(start, int)
        assert isinstance(end, int)
        return end - start
    return round(start.elapsed_time(end) * 1e6)


def is_over(mark: Mark) -> bool:
    """Whether a mark has passed; never waits."""
    return isinstance(mark, int) or mark.query()
