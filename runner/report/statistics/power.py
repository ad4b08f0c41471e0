"""What a number of runs can show, and how many runs a gain needs: exact for log-normal times, no simulation.

For equal n and equal spread, t = D / error is noncentral t with 2n - 2 degrees of freedom and independent of
u = s_1² / (s_1² + s_2²), which follows Beta((n-1)/2, (n-1)/2) and alone sets Welch's degrees of freedom,
(n-1) / (u² + (1-u)²). So power is the mean over u of a tail of that distribution. Source: own derivation, for
docs/method.md, "Planning tables".
"""

import math

import numpy as np
from scipy.special import betaincinv, nctdtr

from ....strategies.errors import ConfigError, above, at_least
from .estimate import LEVEL, t_limit

POWER = 0.8
_MOST_RUNS = 10_000
_POINTS = 400  # of the mean over u: quantiles at the midpoints of equal shares


def log_sd(cv: float) -> float:
    """Standard deviation of ln T for log-normal times of coefficient of variation `cv` (a share)."""
    at_least("cv", cv, 0.0)
    return math.sqrt(math.log1p(cv**2))


def power(difference: float, sd: float, runs: int, *, level: float = LEVEL, two_sided: bool = True) -> float:
    """The chance that Welch's interval of `level` misses 0 when two means truly differ by `difference`.

    `sd`: of single runs on both sides, in the same unit (ln T: `log_sd`); `runs`: per arm, 2 or more. With
    `two_sided=False` only the misses on the side of the difference count. Raises ConfigError for fewer runs
    or an sd that is not above 0.
    """
    at_least("runs", runs, 2)
    above("sd", sd, 0.0)
    shares = (np.arange(_POINTS) + 0.5) / _POINTS
    half = (runs - 1) / 2
    u = betaincinv(half, half, shares)
    limits = t_limit(level, (runs - 1) / (u**2 + (1 - u) ** 2))
    away = abs(difference) / (sd * math.sqrt(2 / runs))
    found = 1 - nctdtr(2 * runs - 2, away, limits)
    if two_sided:
        found = found + nctdtr(2 * runs - 2, away, -limits)
    return float(found.mean())


def runs_needed(ratio: float, cv: float, *, chance: float = POWER, level: float = LEVEL) -> int:
    """Runs per arm with which a true gain of `ratio` times (above 1) shows with at least `chance`; 2 or more.

    `cv`: of the times of either arm, a share. Raises ConfigError for a ratio not above 1, or if 10,000 do not
    do.
    """
    above("ratio", ratio, 1.0)
    low, high = 1, 2
    while power(math.log(ratio), log_sd(cv), high, level=level) < chance:
        low, high = high, 2 * high
        if high > _MOST_RUNS:
            raise ConfigError(f"ratio={ratio}, cv={cv}: needs more than {_MOST_RUNS} runs per arm")
    while high - low > 1:
        middle = (low + high) // 2
        enough = power(math.log(ratio), log_sd(cv), middle, level=level) >= chance
        low, high = (low, middle) if enough else (middle, high)
    return high


def detectable(runs: int, sd: float, *, chance: float = POWER, level: float = LEVEL) -> float:
    """The smallest true ratio that `runs` runs per arm show with `chance`: "this plan could detect ≥ x".

    `sd`: of ln T, for a finished study the root mean square of both arms'. Within 1e-6.
    """
    low, high = 0.0, sd
    while power(high, sd, runs, level=level) < chance:
        low, high = high, 2 * high
    while high - low > 1e-6:
        middle = (low + high) / 2
        low, high = (low, middle) if power(middle, sd, runs, level=level) >= chance else (middle, high)
    return math.exp(high)


def power_of_no_loss(margin: float, sd: float, runs: int, *, level: float = LEVEL) -> float:
    """The chance that "no loss" is supported when there is none: the interval lies above -margin.

    `margin` and the `sd` between seeds in points of the metric.
    """
    return power(margin, sd, runs, level=level, two_sided=False)
