"""The noise floor: what two measurements of the same baseline differ by. Nothing smaller is called a gain.

Source: docs/method.md, "Noise floor": A/A′ and A/A″.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from . import estimate
from .estimate import LEVEL, Interval
from .ratio import FEWEST_RUNS, Ratio


def distance(log_ratio: Any, half_width: Any = 0.0) -> Any:
    """The larger of u and 1/l, minus 1, of the interval exp(log_ratio ± half_width); numbers or arrays."""
    return np.expm1(np.abs(log_ratio) + half_width)


@dataclass(frozen=True, kw_only=True)
class ClockFloor:
    """m_clock, as a share: same seed, same trajectory, so that only clock and machine differ.

    `interval`: the paired t interval of T_A / T_A′.
    """

    floor: float
    interval: Interval

    @property
    def biased(self) -> bool:
        """Whether the interval misses 1, order or slot bias: all verdicts of the study become provisional."""
        return not self.interval.holds(1.0)


@dataclass(frozen=True, kw_only=True)
class FreshFloor:
    """m_fresh, as a share: fresh seeds on all axes; `ratio` is A / A″ of the headline's time."""

    floor: float
    ratio: Ratio

    @property
    def misses_one(self) -> bool:
        """Whether the interval misses 1; expected in 1 of 20 sound studies, and printed."""
        return not self.ratio.interval.holds(1.0)


@dataclass(frozen=True, kw_only=True)
class NoiseFloor:
    """Both floors of a study; None where A′ or A″ was not run (or below 3 runs): then no verdict.

    `unknown`: why `fresh` is None although A″ was run; "" else.
    """

    clock: ClockFloor | None
    fresh: FreshFloor | None
    unknown: str = ""

    @property
    def floor(self) -> float | None:
        """m = max(m_clock, m_fresh) as a share; None if one is missing."""
        if self.clock is None or self.fresh is None:
            return None
        return max(self.clock.floor, self.fresh.floor)

    @property
    def missing(self) -> list[str]:
        """Which of the two were not run: "A′", "A″"."""
        known = (("A′", self.clock), ("A″", self.fresh or self.unknown))
        return [name for name, part in known if not part]

    @property
    def biased(self) -> bool:
        return self.clock is not None and self.clock.biased


def clock_floor(log_ratios: Sequence[float], *, level: float = LEVEL) -> ClockFloor | None:
    """From δ_j = ln(T_A / T_A′) of each block; None below 3 blocks.

    Where A′ runs only the first part of the schedule, both times are per sample of that part.
    """
    if len(log_ratios) < FEWEST_RUNS:
        return None
    found = estimate.paired(log_ratios, [0.0] * len(log_ratios))
    interval = found.interval(level)
    half = (interval.high - interval.low) / 2
    return ClockFloor(floor=float(distance(found.difference, half)), interval=interval.exponential())


def fresh_floor(ratio: Ratio | None) -> FreshFloor | None:
    """From the ratio A / A″; None without one (below 3 runs), or where a run of A or A″ missed the target.

    Such a run counts at the budget, which the plan chose: a floor made of it would measure the plan's budget
    and not what two baselines differ by.
    """
    if ratio is None or ratio.side:
        return None
    return FreshFloor(floor=float(distance(ratio.estimate.difference)), ratio=ratio)
