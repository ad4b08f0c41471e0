"""CUDA-event step timing without host synchronisation; the stop flag is read one step late.

Events are recorded while a step is launched. The host goes on to the next step and reads them later:

    host   launch step 1 | launch step 2, read the stop flag of 1 and times of ended steps | launch step 3 …
    GPU                  | step 1                             | step 2                     | step 3 …

The host never waits for the step that it has just launched, so the GPU always has work in its queue; and it
is never more than one step ahead, since it waits for the stop flag of the step before. On a CPU, marks are
times of the host's clock, and each step is read at its own end.
"""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from ...strategies.replica import StepTimes

Mark = int | torch.cuda.Event
"""A point in time: nanoseconds of this rank's clock, or an event in a GPU's stream."""


@dataclass(frozen=True, kw_only=True)
class StepMarks:
    """Marks of a step.

    Args:
        samples_of_rank: the sizes of the step's batches.
        forward: beginning and end of each part's forward pass.
        computed: all gradients are computed.
        done: all gradients are summed.
    """

    samples_of_rank: tuple[int, ...]
    forward: tuple[tuple[Mark, Mark], ...]
    started: Mark
    computed: Mark
    done: Mark


class StepTimings:
    """Times of launched steps, oldest first, read when they are over; and their sums for the clock."""

    def __init__(self) -> None:
        self._open: deque[StepMarks] = deque()
        self.compute_ns = self.exposed_ns = 0

    def add(self, marks: StepMarks) -> None:
        """Note a step that was launched."""
        self._open.append(marks)

    def known(self) -> list[StepTimes]:
        """The times of steps that are over and were not read before; never waits."""
        times = []
        while self._open and is_over(self._open[0].done):
            times.append(self._read(self._open.popleft()))
        return times

    def wait_pending(self) -> list[StepTimes]:
        """`known`, once all steps are over; waits for them."""
        if self._open and not isinstance(done := self._open[-1].done, int):
            done.synchronize()
        return self.known()

    def take_sums(self) -> tuple[int, int]:
        """Nanoseconds of computing and of exposed sums since the last call."""
        sums, self.compute_ns, self.exposed_ns = (self.compute_ns, self.exposed_ns), 0, 0
        return sums

    def _read(self, marks: StepMarks) -> StepTimes:
        compute = between(marks.started, marks.computed)
        self.compute_ns += compute
        self.exposed_ns += between(marks.computed, marks.done)
        forward = sum(between(began, ended) for began, ended in marks.forward)
        return StepTimes(marks.samples_of_rank, forward, compute)


class DelayedFlag:
    """A number on a GPU that the host reads one step after it was computed.

    Always one step later, even where it could be read sooner: all ranks must act on it in the same step.
    """

    def __init__(self, event: Callable[[], torch.cuda.Event], *, pinned: bool) -> None:
        self._event, self._pinned = event, pinned
        self._before: tuple[Tensor, torch.cuda.Event] | None = None

    def next(self, value: Tensor) -> float:
        """Start to copy this step's number [1]; returns that of the step before, 0 in the first."""
        before = self._before
        copy = torch.empty(value.shape, dtype=value.dtype, pin_memory=self._pinned)
        copy.copy_(value, non_blocking=True)
        event = self._event()
        event.record()
        self._before = (copy, event)
        if before is None:
            return 0.0
        number, copied = before
        copied.synchronize()  # of the step before; the step just launched keeps the GPU busy
        return float(number)


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
