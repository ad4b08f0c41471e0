"""Planning a study: power of the Welch test, and target and budget from pilot runs of the baseline.

Power is exact for log-normal times, no simulation. For equal n and equal spread, t = D / error is noncentral
t with 2n - 2 degrees of freedom and independent of u = s_1² / (s_1² + s_2²), which follows Beta((n-1)/2,
(n-1)/2) and alone sets Welch's degrees of freedom, (n-1) / (u² + (1-u)²). So power is the mean over u of a
tail of that distribution (own derivation). Source: docs/method.md, "Planning tables", "Tuning and pilot".
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, median

import numpy as np
from scipy.special import betaincinv, nctdtr

from ....strategies.errors import ConfigError
from .welch import LEVEL, POWER, t_limit

FEWEST_PILOTS = 10


def power(difference: float, sd: float, runs: int, *, level: float = LEVEL) -> float:
    """The chance that Welch's interval of `level` misses 0 when two means truly differ by `difference`.

    `sd`: of single runs on both sides, in the same unit (ln T); `runs`: per arm, 2 or more.
    """
    half = (runs - 1) / 2
    u = betaincinv(half, half, (np.arange(400) + 0.5) / 400)  # at the midpoints of 400 equal shares
    limits = t_limit(level, (runs - 1) / (u**2 + (1 - u) ** 2))
    noncentrality = abs(difference) / (sd * math.sqrt(2 / runs))
    # scipy gives NaN for tails that are too small for a float: these are 0.
    missed = np.nan_to_num(nctdtr(2 * runs - 2, noncentrality, limits))
    other_side = np.nan_to_num(nctdtr(2 * runs - 2, noncentrality, -limits))
    return float((1 - missed + other_side).mean())


def detectable(runs: int, sd: float, *, level: float = LEVEL) -> float:
    """The smallest true ratio that `runs` runs per arm show at 80 % power: "this plan could detect ≥ x".

    `sd`: of ln T, for a finished study the root mean square of both arms'. Within 1e-6.
    """
    low, high = 0.0, sd
    while power(high, sd, runs, level=level) < POWER:
        low, high = high, 2 * high
    while high - low > 1e-6:
        middle = (low + high) / 2
        low, high = (low, middle) if power(middle, sd, runs, level=level) >= POWER else (middle, high)
    return math.exp(high)


@dataclass(frozen=True, kw_only=True)
class Target:
    """Target and budget of a study, as a share of correct samples.

    `knee`: accuracy at which the mean curve bends; `reached`: share of the pilots that reached the target;
    `step`: of the grid. `budget_s`: seconds of T_train after which a run is a failure.
    """

    value: float
    knee: float
    step: float
    reached: float
    budget_s: float


def choose(curves: Sequence[Sequence[float]], train_s: Sequence[float], validation: int, test: int) -> Target:
    """From each pilot's accuracies (shares, at the same sample counts) and its T_train in seconds.

    `validation`, `test`: samples of the two splits. Raises ConfigError for fewer than 10 pilots or 3
    evaluations that all have, or if no value of the grid is reached. Source: docs/method.md, "Tuning and
    pilot".
    """
    if len(curves) < FEWEST_PILOTS:
        raise ConfigError(f"{len(curves)} pilot runs: must be {FEWEST_PILOTS} or more")
    marks = min(len(curve) for curve in curves)
    if marks < 3:
        raise ConfigError(
            f"{marks} evaluations that all pilots have: must be 3 or more (train.eval_every_samples)"
        )
    mean = [fmean(values) for values in zip(*curves, strict=False)]
    # The knee lies highest above the line from the first to the last point.
    rise = (mean[-1] - mean[0]) / (marks - 1)
    knee = max(enumerate(mean), key=lambda point: point[1] - mean[0] - rise * point[0])[1]
    step = grid_step(knee, validation, test)
    best = sorted((max(curve) for curve in curves), reverse=True)
    nine_in_ten = best[math.ceil(0.9 * len(best)) - 1]  # so many pilots reach this
    place = min(math.ceil(knee / step - 1e-9), math.floor(nine_in_ten / step + 1e-9))
    if place < 1:
        raise ConfigError(
            f"nine in ten pilots reach {nine_in_ten:.4g} only: no value of a grid of {step:g} is below"
        )
    value = round(place * step, 10)
    return Target(
        value=value,
        knee=knee,
        step=step,
        reached=sum(top >= value - 1e-12 for top in best) / len(best),
        budget_s=2 * median(train_s),
    )


def grid_step(accuracy: float, validation: int, test: int) -> float:
    """√(p(1-p)(1/M_v + 1/M_t)) up to the next of 1, 2, 2.5, 5 times a power of ten; at least 0.001."""
    if min(validation, test) < 1:
        raise ConfigError(f"splits of {validation} and {test} samples: must be 1 or more each")
    p = min(max(accuracy, 0.0), 1.0)
    error = max(1e-3, math.sqrt(p * (1 - p) * (1 / validation + 1 / test)))
    power_of_ten = 10.0 ** math.floor(math.log10(error))
    steps = (nice * power_of_ten for nice in (1.0, 2.0, 2.5, 5.0, 10.0))
    return next(round(step, 12) for step in steps if step >= error * (1 - 1e-9))
