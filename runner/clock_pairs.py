"""What the clock itself costs: it is off in every other block of steps (`study.role=overhead`).

Off means: nothing is booked to parts, no collective is stamped and no time of a GPU recorded; times are still
read where collectives begin and end (some 50 ns each). Blocks come in pairs, on and off, then off and on, so
that a drift of the machine cancels. Writing a log is left out of a block; a longer pause of training
(evaluation, checkpoint) throws the block in hand away, and with it its pair.
Source: the measuring rules (time to accuracy), "validity, fairness ledger, guard".
"""

import math
from typing import Any

from .clock import Clock

STEPS = 20  # of a block


class PairedClock(Clock):
    """A clock that measures itself; for runs whose ranks take equal steps."""

    log_ratios: list[float]
    """Of each pair: ln of the time of a step with the clock over one without it."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.log_ratios = []
        self._began: int | None = None
        self._steps = 0
        self._first_ns: int | None = None  # of the pair's first block, once it is over
        self._first_on = True
        self._paused: tuple[int, bool] | None = (
            None  # since when a log is written, and whether the clock was on
        )

    def begin_step(self) -> None:
        now = self._now()
        if self._began is not None and self._steps == STEPS:
            self._end_block(now - self._began)
            self._began = None
        if self._began is None:
            self._began, self._steps = self._now(), 0
        self._steps += 1

    def enter(self, segment: str) -> None:
        was_on, trained = self._traffic.timing, self.segment == "train"
        self._turn(on=True)
        super().enter(segment)
        if trained and segment == "log":
            self._paused = self._since, was_on
        elif segment == "train" and self._paused is not None and self._began is not None:
            since, was_on = self._paused
            self._began += self._since - since
            self._paused = None
            self._turn(on=was_on)
        else:
            self._began = self._first_ns = self._paused = None
            self._turn(on=self._first_on)

    def lap(self, part: str) -> None:
        if self._traffic.timing:
            super().lap(part)

    def measured(self) -> dict[str, Any]:
        return {"clock_pairs": {"steps": STEPS, "log_ratios": self.log_ratios}}

    def _end_block(self, took: int) -> None:
        if self._first_ns is None:
            self._first_ns = took
            self._turn(on=not self._first_on)
            return
        with_clock, without = (self._first_ns, took) if self._first_on else (took, self._first_ns)
        self.log_ratios.append(math.log(with_clock / without))
        self._first_ns, self._first_on = None, not self._first_on  # the next pair begins as this one ends
        self._turn(on=self._first_on)

    def _turn(self, *, on: bool) -> None:
        if on and not self._traffic.timing:
            self._traffic.timing = True
            if self.segment == "train":
                super().lap("step_other")  # what went by unbooked
        elif not on and self.segment == "train":
            super().lap("step_other")
            self._traffic.timing = False
