"""Censored times: ratios of arms of which some runs missed the target.

No run is dropped, and a run that missed the target never counts as one that crossed it. Source:
docs/method.md, "Runs that miss the target".
"""

import math
from dataclasses import dataclass
from statistics import fmean

from scipy import stats

from ...records.target_crossing import Crossing
from .slow_runs import typical
from .welch import LEVEL, Interval, Ratio, Side, Times, welch


@dataclass(frozen=True, kw_only=True)
class Reached:
    """The runs of one arm towards one target, in the order of their seeds, times in seconds of T_train.

    `met[i]`: whether run i reached the target; `seconds[i]`: its scored crossing time, else the time it used.
    `log_widths`: of the runs that met it, see `Times`. `budget_s`: the time budget, the same for all arms.
    """

    seconds: tuple[float, ...]
    met: tuple[bool, ...]
    budget_s: float
    log_widths: tuple[float, ...] = ()

    @property
    def reached(self) -> int:
        """k: the runs that reached the target."""
        return sum(self.met)

    @property
    def runs(self) -> int:
        """n: all runs."""
        return len(self.seconds)

    @property
    def all_reached(self) -> bool:
        return self.reached == self.runs

    @property
    def rate_only(self) -> bool:
        """Whether fewer than half reached it, so that only the rate is reported and no time."""
        return self.reached / self.runs < 0.5


def log_width(crossing: Crossing) -> float:
    """w = ln(t_j / t_(j-1)), the evaluation interval of the crossing; inf if the first evaluation met it."""
    return math.inf if crossing.at_first else math.log(crossing.stamp_s / crossing.after_s)


def wilson(reached: int, runs: int, *, level: float = LEVEL) -> Interval:
    """Wilson's interval of k of n, no continuity correction."""
    ends = stats.binomtest(reached, runs).proportion_ci(level, method="wilson")
    return Interval(float(ends.low), float(ends.high))


def median_s(arm: Reached) -> float | None:
    """The smallest time by which at most half had not reached the target (Kaplan-Meier), in seconds.

    Runs that missed the target are censored at the budget. None if fewer than half of the runs reached it.
    """
    if arm.rate_only:
        return None
    crossed = [time for time, met in zip(arm.seconds, arm.met, strict=True) if met]
    missed = [arm.budget_s] * (arm.runs - arm.reached)
    curve = stats.ecdf(stats.CensoredData(uncensored=crossed, right=missed)).sf
    points = zip(curve.quantiles.tolist(), curve.probabilities.tolist(), strict=True)
    # The product of fractions may end a rounding error above a half that is exact.
    return next((time for time, left in points if left <= 0.5 + 1e-12), None)


def compare(base: Reached, arm: Reached, *, level: float = LEVEL) -> Ratio | None:
    """The ratio of crossing times; failures of one arm enter at the budget and leave one end unknown.

    None if both have failures, if fewer than half of either reached it (rate only), or below 3 runs. The
    interval is that of the times at the budget with its open end removed, since the printed point alone would
    leave out the scatter.
    """
    if base.rate_only or arm.rate_only or not (base.all_reached or arm.all_reached):
        return None
    side: Side = "≥" if not base.all_reached else "" if arm.all_reached else "≤"
    return welch(to_judge(base), to_judge(arm), level=level, side=side)


def to_judge(arm: Reached) -> Times:
    """The times of the typical runs; of all runs, failures at the budget, where some missed the target."""
    return typical(at_budget(arm))[0] if arm.all_reached else at_budget(arm)


def at_budget(arm: Reached) -> Times:
    """All runs as times, failures at the budget with the quadratic mean of the widths: same grid variance."""
    widths, known = list[float](), iter(arm.log_widths)
    if arm.log_widths:
        quadratic_mean = math.sqrt(fmean(width**2 for width in arm.log_widths))
        widths = [next(known) if met else quadratic_mean for met in arm.met]
    pairs = zip(arm.seconds, arm.met, strict=True)
    return Times(tuple(time if met else arm.budget_s for time, met in pairs), tuple(widths))
