"""Several workloads together: a geometric mean of ratios with its interval, and performance profiles.

Source: the measuring rules (time to accuracy), "statistics", across workloads. Profiles: Dolan and Moré
(2002), Benchmarking optimization software with performance profiles, doi:10.1007/s101070100263.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ...strategies.errors import ConfigError, at_least
from .estimate import LEVEL, Interval, exponential
from .ratio import Times

FEWEST_WORKLOADS = 4  # fewer are listed one by one
_DRAWS = 4000
_SEED = 20_260_101  # fixed: the same raw numbers give the same bytes
_LARGEST_TAU = 4.0


@dataclass(frozen=True, kw_only=True)
class Aggregate:
    """Geometric mean over workloads of the ratio of geometric mean times, baseline over arm."""

    point: float
    interval: Interval


def geometric_mean_of_ratios(
    workloads: Mapping[str, tuple[Times, Times] | None], *, level: float = LEVEL
) -> Aggregate | None:
    """Over all workloads; `workloads`: name -> times of baseline and arm, None if either missed its target.

    The interval is a studentised bootstrap of the mean ln ratio that draws workloads, then seeds in each arm.
    None below 4 workloads, or if one missed its target: that rules the mean out, the workload stays in the
    profile. Raises ConfigError for a workload with fewer than 2 runs on a side.
    """
    pairs = [pair for pair in workloads.values() if pair is not None]
    if len(pairs) < FEWEST_WORKLOADS or len(pairs) < len(workloads):
        return None
    for name, pair in workloads.items():
        if pair is not None:
            at_least(f"runs of {name}", min(len(times.seconds) for times in pair), 2)
    logs = [(np.array(base.logs), np.array(arm.logs)) for base, arm in pairs]
    ratios = np.array([base.mean() - arm.mean() for base, arm in logs])
    mean, error = float(ratios.mean()), _error(ratios[None, :])[0]
    drawn = _draw(logs)
    errors = _error(drawn)
    # Draws of one workload only, over and over, have no scatter to scale by.
    t = ((drawn.mean(axis=1) - mean) / np.where(errors > 0, errors, 1.0))[errors > 0]
    if error == 0 or not len(t):
        return Aggregate(point=exponential(mean), interval=Interval(exponential(mean), exponential(mean)))
    low, high = np.quantile(t, [0.5 - level / 2, 0.5 + level / 2])
    interval = Interval(mean - float(high) * error, mean - float(low) * error)
    return Aggregate(point=exponential(mean), interval=interval.exponential())


def _error(ratios: NDArray[np.float64]) -> NDArray[np.float64]:
    """The standard error of each row's mean."""
    return ratios.std(axis=1, ddof=1) / math.sqrt(ratios.shape[1])


def _draw(logs: Sequence[tuple[NDArray[np.float64], NDArray[np.float64]]]) -> NDArray[np.float64]:
    """ln ratios of drawn workloads with drawn seeds: an array (draws, workloads)."""
    rng = np.random.default_rng(_SEED)
    chosen = rng.integers(len(logs), size=(_DRAWS, len(logs)))
    found = np.empty(chosen.shape)
    for index, sides in enumerate(logs):
        here = chosen == index
        count = int(here.sum())
        means = [side[rng.integers(len(side), size=(count, len(side)))].mean(axis=1) for side in sides]
        found[here] = means[0] - means[1]
    return found


def performance_profile(
    times_s: Mapping[str, Mapping[str, float | None]], taus: Sequence[float]
) -> dict[str, list[float]]:
    """ρ(τ) of each arm: the share of workloads on which it takes at most τ times the fastest arm's time.

    `times_s`: workload -> arm -> seconds, None (or absent) for a missed target, which never counts as within
    τ of anything. Raises ConfigError for a τ outside [1, 4] or a time that is not positive.
    """
    for tau in taus:
        if not 1 <= tau <= _LARGEST_TAU:
            raise ConfigError(f"tau={tau}: must be between 1 and {_LARGEST_TAU:g}")
    arms = list(dict.fromkeys(arm for times in times_s.values() for arm in times))
    relative: dict[str, list[float]] = {arm: [] for arm in arms}
    for times in times_s.values():
        known = {arm: Times((value,)).seconds[0] for arm, value in times.items() if value is not None}
        for arm in arms:
            relative[arm].append(known[arm] / min(known.values()) if arm in known else math.inf)
    return {arm: [sum(r <= tau for r in relative[arm]) / len(times_s) for tau in taus] for arm in arms}
