"""Clock of one rank: segments that cover the life of its process, and the parts of the segment `train`.

Stamps come from the rank's own monotonic clock (nanoseconds); reading it adds no collective and no device
synchronise. `train` is cut into intervals at the points where all ranks meet outside of training (an inline
evaluation, a checkpoint): T_train = Σ_j max_i d_i(j), with d_i(j) rank i's time in `train` during interval j.
Source: docs/method.md, "Training time and its parts".
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from ..communication.traffic import Traffic

SEGMENTS = ("startup", "train", "make_model", "eval", "checkpoint", "log", "other")
PARTS = ("compute", "exposed", "waiting", "data", "step_other")


@dataclass
class TrainInterval:
    """One rank's train interval, nanoseconds.

    `blocked` is not yet split into transfer (`exposed`) and `waiting`.
    """

    train: int
    compute: int
    blocked: int
    data: int
    step_other: int


def by_device(interval: TrainInterval, compute_ns: int, exposed_ns: int) -> TrainInterval:
    """`interval` with parts measured on the GPU; they still sum to `train`.

    A host that runs ahead does not see what its GPU does. Computing and exposed communication come from the
    device. Data is the host's time for it, as far as the GPU did not compute meanwhile; the rest is other.
    """
    compute = min(compute_ns, interval.train)
    blocked = min(interval.blocked + exposed_ns, interval.train - compute)
    data = min(interval.data, interval.train - compute - blocked)
    return TrainInterval(interval.train, compute, blocked, data, interval.train - compute - blocked - data)


class Clock:
    """Segments and parts of one rank. Exactly one segment is open at any time."""

    def __init__(self, now: Callable[[], int], traffic: Traffic, started: int | None = None) -> None:
        self._now, self._traffic = now, traffic
        self.started = self._since = now() if started is None else started
        self.segment = "startup"
        traffic.training = False  # not before the segment `train` begins
        self.on_training: Callable[[bool], None] | None = None  # called when training begins and pauses
        self.wait_pending: Callable[[], None] | None = None  # waits for the device, before a pause
        self._training = False
        self.segments: dict[str, int] = dict.fromkeys(SEGMENTS, 0)
        self._parts: dict[str, int] = dict.fromkeys(("compute", "data", "step_other"), 0)
        self._recorded_until = self._blocked_before = 0
        self._interval_train = self._interval_blocked = 0

    def enter(self, segment: str) -> None:
        """Close the open segment and open `segment`."""
        trains = segment == "train"
        # Writing a record is too short to count as a pause.
        changes = segment != "log" and trains != self._training
        if changes and trains:
            self._announce(True)  # outside of training time, as at its end
        elif changes and self.wait_pending is not None:
            self.wait_pending()  # what still runs is training
        now = self._now()
        self.segments[self.segment] += now - self._since
        self.segment, self._since = segment, now
        self._traffic.training = segment == "train"
        if segment == "train":
            self._recorded_until, self._blocked_before = now, self._traffic.blocked_ns
        if changes and not trains:
            self._announce(False)

    def _announce(self, trains: bool) -> None:
        self._training = trains
        if self.on_training is not None:
            self.on_training(trains)

    @contextmanager
    def within(self, segment: str) -> Iterator[None]:
        """Spend the body in `segment`, then go back to the one before."""
        before = self.segment
        self.enter(segment)
        try:
            yield
        finally:
            self.enter(before)

    def record_time(self, part: str) -> None:
        """Add the time since the last call to `part`, without the time blocked in collectives."""
        now, blocked = self._now(), self._traffic.blocked_ns
        self._parts[part] += now - self._recorded_until - (blocked - self._blocked_before)
        self._interval_blocked += blocked - self._blocked_before
        self._recorded_until, self._blocked_before = now, blocked

    def end_interval(self) -> TrainInterval:
        """This rank's times in `train` since the last call. Call it outside of `train`."""
        assert self.segment != "train", "an interval ends where training pauses"
        train = self.segments["train"] - self._interval_train
        interval = TrainInterval(train=train, blocked=self._interval_blocked, **self._parts)
        self._interval_train = self.segments["train"]
        self._interval_blocked = 0
        self._parts = dict.fromkeys(self._parts, 0)
        return interval

    def interval_so_far(self) -> int:
        """Nanoseconds in `train` since the last `end_interval`; `train` must be open."""
        assert self.segment == "train", "only training is counted"
        return self.segments["train"] + self._now() - self._since - self._interval_train

    def total(self) -> int:
        """Nanoseconds since the clock was made, with the open segment."""
        return self._now() - self.started

    def closed(self) -> dict[str, int]:
        """All segments, nanoseconds, the open one up to now."""
        self.enter(self.segment)
        return dict(self.segments)
