"""Which times of an arm's runs are compared: slow runs left out, runs that missed the target at the budget.

What is estimated is the ratio of geometric means of undisturbed runs. A slow run does not enter the mean; in
the variance it counts as a run just at the limit, since a limit that is itself estimated cuts off some runs
that nothing disturbed. No run that missed the target is dropped or counts as one that crossed it. Source:
docs/method.md, "Slow runs" and "Runs that miss the target".
"""

import math
from collections.abc import Sequence
from dataclasses import replace
from statistics import fmean
from typing import Any

import numpy as np
from scipy import stats

from ...records.target_crossing import Crossing
from .welch import LEVEL, Interval, Times

FEWEST = 5  # runs of an arm; in a smaller one no run is called slow
MADS = 4.0  # scaled median absolute deviations above the median
SCALE = 1.4826  # makes the median absolute deviation of normal values their standard deviation
LEAST_LOG = math.log(1.05)  # a run that takes less than 5 % longer is never slow
LEAST_S = 1e-9  # a crossing that damaged records put at 0 s has no logarithm


def limits(logs: Any, grid_variance: Any = 0.0) -> Any:
    """ln of the time above which runs are slow: of ln T [..., runs] one for each arm [...].

    `grid_variance` [...]: what the evaluation grid puts into ln T. Where most runs cross at one mark, it is
    the only scatter that is known.
    """
    middle = np.median(logs, axis=-1)
    mad = SCALE * np.median(np.abs(logs - middle[..., None]), axis=-1)
    return middle + np.maximum(MADS * np.sqrt(mad**2 + grid_variance), LEAST_LOG)


def typical(times: Times) -> tuple[Times, tuple[int, ...]]:
    """The times of the typical runs of an arm, and the places of its slow runs in `times`, in their order.

    The least variance of the typical times is that of all times, slow ones taken at the limit. None is slow
    in an arm of which runs missed the target.
    """
    logs = np.array(times.logs)
    if len(logs) < FEWEST or times.missed:
        return times, ()
    limit = float(limits(logs, times.grid_variance))
    slow = tuple(np.flatnonzero(logs > limit).tolist())
    if not slow:
        return times, ()
    kept = [place for place in range(len(logs)) if place not in slow]
    made = replace(
        times,
        seconds=tuple(times.seconds[place] for place in kept),
        log_widths=tuple(times.log_widths[place] for place in kept) if times.log_widths else (),
        met=(),
        slow_variance=float(np.minimum(logs, limit).var(ddof=1)),
    )
    return made, slow


def crossing_times(crossings: Sequence[Crossing | None], budget_s: float) -> Times:
    """The scored times of one arm's runs to the target, in seconds of T_train; None: the run missed it.

    These count at the budget, the same for all arms, with the quadratic mean of the others' widths, which
    leaves the grid variance as it is.
    """
    widths = [
        # If the first evaluation met the target, the time before it is not known.
        math.inf if crossing.at_first else math.log(crossing.stamp_s / crossing.after_s)
        for crossing in crossings
        if crossing
    ]
    of_missed = math.sqrt(fmean(width**2 for width in widths)) if widths else 0.0
    known = iter(widths)
    return Times(
        tuple(max(LEAST_S, crossing.scored_s) if crossing else budget_s for crossing in crossings),
        tuple(next(known) if crossing else of_missed for crossing in crossings) if widths else (),
        met=tuple(crossing is not None for crossing in crossings),
    )


def wilson(reached: int, runs: int, *, level: float = LEVEL) -> Interval:
    """Wilson's interval of the share of runs that reach the target, no continuity correction."""
    ends = stats.binomtest(reached, runs).proportion_ci(level, method="wilson")
    return Interval(float(ends.low), float(ends.high))


def median_s(times: Times) -> float | None:
    """The smallest time by which at most half had not reached the target (Kaplan-Meier), in seconds.

    Runs that missed the target are censored at the budget. None if fewer than half of the runs reached it.
    """
    if times.rate_only:
        return None
    runs = list(zip(times.seconds, times.met, strict=True))
    crossed, missed = ([time for time, met in runs if met is reached] for reached in (True, False))
    curve = stats.ecdf(stats.CensoredData(uncensored=crossed, right=missed)).sf
    points = zip(curve.quantiles.tolist(), curve.probabilities.tolist(), strict=True)
    # The product of fractions may end a rounding error above a half that is exact.
    return next((time for time, left in points if left <= 0.5 + 1e-12), None)
