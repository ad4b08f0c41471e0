"""How many times as fast: a ratio of geometric mean times, its t interval, and lines to hold against it.

Source: docs/method.md, "Statistics of ratios".
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from ....strategies.errors import ConfigError, within
from . import estimate
from .estimate import LEVEL, Estimate, Interval, exponential

FEWEST_RUNS = 3  # fewer give no ratio at all
_FEWEST_TO_TRIM = 5
SIGNIFICANT = 0.05  # of the Holm-adjusted p
Side = Literal["", "≥", "≤"]


@dataclass(frozen=True)
class Times:
    """The times of one arm in seconds (or any positive number per run: samples, seconds a sample).

    `log_widths`: for crossing times w = ln(t_j / t_(j-1)) of each run, the stretch in which it crossed, inf
    if its first evaluation met the target; empty for fixed work. Raises ConfigError for a time that is not
    positive and finite, a negative width, or widths for some runs only.
    """

    seconds: tuple[float, ...]
    log_widths: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        for value in self.seconds:
            if not (value > 0 and math.isfinite(value)):
                raise ConfigError(f"seconds={value}: must be above 0 and finite")
        for width in self.log_widths:
            if not width >= 0:
                raise ConfigError(f"log_widths={width}: must be >= 0")
        if self.log_widths and len(self.log_widths) != len(self.seconds):
            raise ConfigError(
                f"log_widths: {len(self.log_widths)} for {len(self.seconds)} runs; give one for each, or none"
            )

    @property
    def logs(self) -> list[float]:
        """ln of the times."""
        return [math.log(value) for value in self.seconds]

    @property
    def grid_variance(self) -> float:
        """Mean of w²/12, the variance that the evaluation grid alone puts into ln T; 0 for fixed work."""
        if not self.log_widths:
            return 0.0
        return math.fsum(width**2 / 12 for width in self.log_widths) / len(self.log_widths)


@dataclass(frozen=True, kw_only=True)
class Ratio:
    """Time of the baseline over time of the arm: above 1 the arm is faster.

    `side`: "≥" if runs of the baseline missed the target and count at the budget, so that the upper end is
    not known; "≤" if runs of the arm did. `estimate` is that of the logarithms. `ratio_of_trimmed_means`:
    arithmetic means without the fastest and the slowest run, None below 5 runs on a side.
    """

    point: float
    interval: Interval
    level: float
    estimate: Estimate
    ratio_of_medians: float
    ratio_of_trimmed_means: float | None
    side: Side = ""

    @property
    def low(self) -> float:
        return self.interval.low

    @property
    def high(self) -> float:
        return self.interval.high

    @property
    def df(self) -> float:
        """Degrees of freedom of the interval."""
        return self.estimate.df

    @property
    def p_no_gain(self) -> float:
        """One-sided p of "the true ratio is at most 1"; 1 where only an upper bound is known."""
        return 1.0 if self.side == "≤" else self.estimate.p_not_above()

    @property
    def sensitive_to_outliers(self) -> bool:
        """Whether the ratio of medians lies outside the interval, by more than rounding."""
        rounding = 1e-9 * self.point
        return not self.low - rounding <= self.ratio_of_medians <= self.high + rounding

    def with_runs(self, runs: int) -> Interval:
        """The interval that `runs` runs of each arm would give if point and spread stayed as they are."""
        return _opened(self.estimate.with_runs(runs).interval(self.level).exponential(), self.side)


def welch(base: Times, arm: Times, *, level: float = LEVEL, side: Side = "") -> Ratio | None:
    """exp(mean ln T_base - mean ln T_arm) with the Welch interval on ln T; None below 3 runs on a side.

    Each variance is at least the grid variance of its side, so that equal crossings never give an interval of
    no width. `side`: see `Ratio`; `reached.compare` sets it.
    """
    if min(len(base.seconds), len(arm.seconds)) < FEWEST_RUNS:
        return None
    found = estimate.welch(base.logs, arm.logs, least=(base.grid_variance, arm.grid_variance))
    return _ratio(base, arm, found, level=level, side=side)


def paired(base: Times, arm: Times, *, level: float = LEVEL, side: Side = "") -> Ratio | None:
    """The same with t on the differences of ln T; run i of both arms has the same seed. None below 3 runs.

    Only for a plan that chose it before the first scored run. The rules name the grid variance for Welch
    only; here the variance of the differences is at least the sum of both sides' grid variances. Raises
    ConfigError for unequal numbers of runs.
    """
    if min(len(base.seconds), len(arm.seconds)) < FEWEST_RUNS:
        return None
    found = estimate.paired(base.logs, arm.logs, least=base.grid_variance + arm.grid_variance)
    return _ratio(base, arm, found, level=level, side=side)


def _ratio(base: Times, arm: Times, found: Estimate, *, level: float, side: Side) -> Ratio:
    trimmed = None
    if min(len(base.seconds), len(arm.seconds)) >= _FEWEST_TO_TRIM:
        trimmed = _trimmed_mean(base.seconds) / _trimmed_mean(arm.seconds)
    return Ratio(
        point=exponential(found.difference),
        interval=_opened(found.interval(level).exponential(), side),
        level=level,
        estimate=found,
        ratio_of_medians=float(np.median(base.seconds) / np.median(arm.seconds)),
        ratio_of_trimmed_means=trimmed,
        side=side,
    )


def _trimmed_mean(values: Sequence[float]) -> float:
    kept = sorted(values)[1:-1]
    return math.fsum(kept) / len(kept)


def _opened(interval: Interval, side: Side) -> Interval:
    """`interval` without the end that censored runs leave unknown."""
    return Interval(0.0 if side == "≤" else interval.low, math.inf if side == "≥" else interval.high)


def holm(p_values: Sequence[float]) -> tuple[float, ...]:
    """Holm-adjusted p values, in the order given: of k comparisons with one baseline, for "no gain".

    Raises ConfigError for a p outside [0, 1].
    """
    for p in p_values:
        within("p", p, 0.0, 1.0)
    order = sorted(range(len(p_values)), key=lambda index: p_values[index])
    adjusted = [0.0] * len(p_values)
    largest = 0.0
    for place, index in enumerate(order):
        largest = max(largest, min(1.0, (len(order) - place) * p_values[index]))
        adjusted[index] = largest
    return tuple(adjusted)


@dataclass(frozen=True, kw_only=True)
class Regret:
    """T_default / T_tuned - 1 on scored seeds, as a share; no `interval` below 3 runs on a side.

    Large in one arm only: the default settings decided between the arms. Source: docs/method.md, "Tuning and
    pilot".
    """

    point: float
    interval: Interval | None


def regret(default: Times, tuned: Times, *, level: float = LEVEL) -> Regret:
    """The regret of an arm's default settings. Raises ConfigError without a run on either side."""
    if not default.seconds or not tuned.seconds:
        raise ConfigError("default or tuned has no runs: regret needs both on scored seeds")
    means = [sum(times.logs) / len(times.logs) for times in (default, tuned)]
    ratio = welch(default, tuned, level=level)
    interval = None if ratio is None else Interval(ratio.low - 1, ratio.high - 1)
    return Regret(point=exponential(means[0] - means[1]) - 1, interval=interval)
