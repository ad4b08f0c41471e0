"""What a GPU tells of a step, without holding up the host: times when they are known, a stop request a step
late.

Events are recorded while a step is launched. The host goes on to the next step and asks later:

    host     launch step 1 | launch step 2, read the stop request of 1, times of steps that are over | launch
    step 3 … GPU                    | step 1                              | step 2                    | step 3
    …

Nobody waits for the step just launched, so the GPU always has work in its queue; and the host is never more
than one step ahead, for it waits for the stop request of the step before. Marks of a clock are known at once:
on CPUs each step is read in itself.
"""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from ...strategies.replica import StepTimes

Mark = int | torch.cuda.Event
"""A moment: nanoseconds of this rank's clock, or an event in a GPU's stream."""


@dataclass(frozen=True, kw_only=True)
class StepMarks:
    """A step's moments. `forward`: beginning and end of each part's forward pass; `computed`: the last
    gradient is there; `done`: and all sums are. `samples_of_rank`: of the step."""

    samples_of_rank: tuple[int, ...]
    forward: tuple[tuple[Mark, Mark], ...]
    started: Mark
    computed: Mark
    done: Mark


class LateTimes:
    """Steps that were launched, oldest first; what is known of them, and sums of it for the clock."""

    def __init__(self) -> None:
        self._open: deque[StepMarks] = deque()
        self.compute_ns = self.exposed_ns = 0

    def add(self, marks: StepMarks) -> None:
        """A step was launched."""
        self._open.append(marks)

    def known(self) -> list[StepTimes]:
        """The times of steps that are over and were not read before; never waits."""
        found = []
        while self._open and is_over(self._open[0].done):
            found.append(self._read(self._open.popleft()))
        return found

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


class LateFlag:
    """A number on a GPU that the host learns one step after it was made.

    Always one step, never "when it is there": ranks that act on it must do so in the same step.
    """

    def __init__(self, event: Callable[[], torch.cuda.Event], *, pinned: bool) -> None:
        self._event, self._pinned = event, pinned
        self._before: tuple[Tensor, torch.cuda.Event] | None = None

    def next(self, value: Tensor) -> float:
        """Take in this step's number [1]; returns that of the step before, 0 without one."""
        before = self._before
        copy = torch.empty(value.shape, dtype=value.dtype, pin_memory=self._pinned)
        copy.copy_(value, non_blocking=True)
        event = self._event()
        event.record()
        self._before = (copy, event)
        if before is None:
            return 0.0
        number, over = before
        over.synchronize()  # of the step before; the one just launched keeps the GPU busy
        return float(number)


def between(start: Mark, end: Mark) -> int:
    """Nanoseconds from one mark to another that are both over."""
    if isinstance(start, int) or isinstance(end, int):
        assert isinstance(start, int)
        assert isinstance(end, int)
        return end - start
    return round(start.elapsed_time(end) * 1e6)


def is_over(mark: Mark) -> bool:
    """Whether a moment has come; never waits."""
    return isinstance(mark, int) or mark.query()
