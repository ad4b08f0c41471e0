"""Where one rank's time goes: segments that cover the process, and the parts of the segment `train`.

Stamps come from the rank's own monotonic clock (nanoseconds); reading it adds no collective and no device
synchronise. `train` is cut into stretches by the points where all ranks meet outside of training (an inline
evaluation, a checkpoint): T_train = Σ_j max_i d_i(j), with d_i(j) rank i's time in `train` during stretch j.
Source: docs/method.md, "Training time and its parts".
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from ..communication.traffic import Traffic, waiting_ns

SEGMENTS = ("startup", "train", "make_model", "eval", "checkpoint", "log", "other")
PARTS = ("compute", "exposed", "waiting", "data", "step_other")


@dataclass
class Stretch:
    """One rank's train stretch, nanoseconds.

    `blocked` is not yet split into transfer (`exposed`) and `waiting`.
    """

    train: int
    compute: int
    blocked: int
    data: int
    step_other: int


def by_device(stretch: Stretch, compute_ns: int, exposed_ns: int) -> Stretch:
    """`stretch` with its parts as the GPU had them; they sum to `train` as before.

    A host that runs ahead does not see what its GPU is busy with: computing and exposed sums are the
    device's, data is what the host spent on it as far as the GPU did not compute meanwhile, the rest other.
    """
    compute = min(compute_ns, stretch.train)
    blocked = min(stretch.blocked + exposed_ns, stretch.train - compute)
    data = min(stretch.data, stretch.train - compute - blocked)
    return Stretch(stretch.train, compute, blocked, data, stretch.train - compute - blocked - data)


class Clock:
    """Segments and parts of one rank. Exactly one segment is open at any time."""

    def __init__(self, now: Callable[[], int], traffic: Traffic, started: int | None = None) -> None:
        self._now, self._traffic = now, traffic
        self.started = self._since = now() if started is None else started
        self.segment = "startup"
        traffic.training = False  # not before the segment `train` begins
        self.on_training: Callable[[bool], None] | None = None  # told when training begins and pauses
        self.wait_pending: Callable[[], None] | None = None  # waits for the device, before a pause
        self._told = False
        self.segments: dict[str, int] = dict.fromkeys(SEGMENTS, 0)
        self._laps: dict[str, int] = dict.fromkeys(("compute", "data", "step_other"), 0)
        self._lap_since = self._blocked_before = 0
        self._stretch_train = self._stretch_blocked = 0

    def enter(self, segment: str) -> None:
        """Close the open segment and open `segment`."""
        trains = segment == "train"
        # Writing a log is no pause worth telling of, whatever comes before and after it.
        tells = segment != "log" and trains != self._told
        if tells and trains:
            self._tell(True)  # before the clock of training runs, and after it has stopped
        elif tells and self.wait_pending is not None:
            self.wait_pending()  # what still runs is training
        now = self._now()
        self.segments[self.segment] += now - self._since
        self.segment, self._since = segment, now
        self._traffic.training = segment == "train"
        if segment == "train":
            self._lap_since, self._blocked_before = now, self._traffic.blocked_ns
        if tells and not trains:
            self._tell(False)

    def _tell(self, trains: bool) -> None:
        self._told = trains
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

    def lap(self, part: str) -> None:
        """Book the time since the last lap to `part`, without what was blocked in collectives meanwhile."""
        now, blocked = self._now(), self._traffic.blocked_ns
        self._laps[part] += now - self._lap_since - (blocked - self._blocked_before)
        self._stretch_blocked += blocked - self._blocked_before
        self._lap_since, self._blocked_before = now, blocked

    def end_stretch(self) -> Stretch:
        """What this rank did in `train` since the last call. Call outside of `train`."""
        assert self.segment != "train", "a stretch ends where training pauses"
        train = self.segments["train"] - self._stretch_train
        stretch = Stretch(
            train, self._laps["compute"], self._stretch_blocked, self._laps["data"], self._laps["step_other"]
        )
        self._stretch_train = self.segments["train"]
        self._stretch_blocked = 0
        self._laps = dict.fromkeys(self._laps, 0)
        return stretch

    def stretch_so_far(self) -> int:
        """Nanoseconds in `train` since the last `end_stretch`; `train` must be open."""
        assert self.segment == "train", "only training is counted"
        return self.segments["train"] + self._now() - self._since - self._stretch_train

    def total(self) -> int:
        """Nanoseconds since the clock was made; the open segment included."""
        return self._now() - self.started

    def closed(self) -> dict[str, int]:
        """All segments, nanoseconds, the open one up to now."""
        self.enter(self.segment)
        return dict(self.segments)


def waiting_of(traffic: Traffic, launches_of_ranks: list[dict[int, int]]) -> int:
    """Nanoseconds that this rank, blocked in collectives, waited for a member that had not entered yet.

    `launches_of_ranks` are the entry stamps of all ranks, on one common clock. For a collective entered at
    a_i and left at z_i the waiting is min(z_i, max_j a_j) - a_i; the rest of the blocked time is transfer,
    and is booked as such.
    """
    last: dict[int, int] = {}
    for launches in launches_of_ranks:
        for key, stamp in launches.items():
            last[key] = max(last.get(key, stamp), stamp)
    total = 0
    for blocked in traffic.blocked:
        if blocked.key in last:
            waited = waiting_ns(blocked.entered, blocked.left, last[blocked.key])
            traffic.correct(blocked, waited)
            total += waited
    return total
