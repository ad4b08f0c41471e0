"""Welch's t intervals of ratios of geometric mean times and of differences of means, and Holm's correction.

scipy's `ttest_ind` gives the same interval for plain samples (a test compares them), but takes no lower limit
of a variance and no arrays of variances. Source: docs/method.md, "Statistics of ratios" and "Runs that miss
the target".
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from statistics import fmean
from typing import Any, Literal

import numpy as np
from scipy.special import nctdtrinc, stdtr, stdtrit

from ....strategies.errors import ConfigError
from .model_error import ModelError

LEVEL = 0.95  # `study.level`
POWER = 0.8
FEWEST_RUNS = 3  # fewer give no ratio at all
SIGNIFICANT = 0.05  # of the Holm-adjusted p
Side = Literal["", "≥", "≤"]


def t_limit(level: float, df: Any) -> Any:
    """The t quantile at which a two-sided interval of `level` ends; `df`: number or array."""
    if not 0.0 < level < 1.0:
        raise ConfigError(f"level={level}: must be above 0 and below 1")
    return stdtrit(df, 0.5 + 0.5 * level)


def error_of(variances: Sequence[Any], counts: Sequence[int]) -> tuple[Any, Any]:
    """Standard error and Welch-Satterthwaite degrees of freedom of a sum of independent means.

    `variances`: of single runs, unbiased, one entry (number or array of studies) per mean; `counts`: runs
    behind each. Where the whole variance is 0 or infinite, the degrees of freedom decide nothing.
    """
    parts = [np.asarray(v, dtype=np.float64) / n for v, n in zip(variances, counts, strict=True)]
    total = sum(parts[1:], start=parts[0])
    usable = (total > 0) & np.isfinite(total)
    # Shares of the whole, so that the squares of tiny variances do not vanish.
    whole = np.where(usable, total, 1.0)
    shares = [np.where(usable, part / whole, 0.0) for part in parts]
    inverse_df = sum(share**2 / (n - 1) for share, n in zip(shares, counts, strict=True))
    df = np.where(usable, 1.0 / np.where(usable, inverse_df, 1.0), sum(n - 1.0 for n in counts))
    return np.sqrt(total), df


@dataclass(frozen=True)
class Interval:
    """The closed interval [low, high]; -inf, 0 (of a ratio) or inf where an end is not known.

    Raises ConfigError if `low` is above `high` or either is NaN.
    """

    low: float
    high: float

    def __post_init__(self) -> None:
        if not self.low <= self.high:
            raise ConfigError(f"interval [{self.low}, {self.high}]: the ends must be in order, and numbers")

    def exponential(self) -> "Interval":
        """The interval of exp(x) for an interval of x."""
        return Interval(exponential(self.low), exponential(self.high))


def exponential(value: float) -> float:
    """exp(value), infinite from 700 on: about there a float ends."""
    return math.exp(value) if value < 700 else math.inf


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """A mean or a difference of means, and what its interval is made of.

    `variances`: of single runs, one of each mean; `counts`: the runs behind each, 2 or more. `fixed`:
    (variance, count) of errors that more runs do not make smaller, the model error of virtual time.
    """

    difference: float
    variances: tuple[float, ...]
    counts: tuple[int, ...]
    level: float = LEVEL
    fixed: tuple[tuple[float, int], ...] = ()

    def __sub__(self, other: "Estimate") -> "Estimate":
        """The difference of two means of independent runs."""
        return replace(
            self,
            difference=self.difference - other.difference,
            variances=self.variances + other.variances,
            counts=self.counts + other.counts,
        )

    @cached_property
    def _error_and_df(self) -> tuple[Any, Any]:
        variances, counts = zip(*zip(self.variances, self.counts, strict=True), *self.fixed, strict=True)
        return error_of(variances, counts)

    @property
    def error(self) -> float:
        """The standard error of `difference`."""
        return float(self._error_and_df[0])

    @property
    def df(self) -> float:
        """Degrees of freedom of the interval (Welch-Satterthwaite)."""
        return float(self._error_and_df[1])

    @property
    def interval(self) -> Interval:
        """difference ± t·error, two-sided. Raises ConfigError for a level outside (0, 1)."""
        half = float(t_limit(self.level, self.df)) * self.error
        return Interval(self.difference - half, self.difference + half)

    @property
    def p_no_gain(self) -> float:
        """One-sided p of "the true difference is at most 0": small means that it is above."""
        return replace(self, difference=-self.difference).p_not_below(0.0)

    @property
    def detectable(self) -> float:
        """The smallest true difference from 0 that an interval of this error misses 0 by with 80 % power."""
        return self.error * float(nctdtrinc(self.df, 1 - POWER, t_limit(self.level, self.df)))

    def p_not_below(self, edge: float) -> float:
        """One-sided p of "the true difference is at least `edge`": small means that it is below."""
        error = self.error
        below = self.difference - edge
        return float(stdtr(self.df, below / error)) if error else float(below >= 0)


def mean_of(values: Sequence[float], *, least: float = 0.0, level: float = LEVEL) -> Estimate:
    """The mean of `values` with its t interval; `least`: lower limit of their variance.

    Raises ConfigError for fewer than 2 values or one that is not finite.
    """
    array = np.asarray(values, dtype=np.float64)
    if len(array) < 2 or not np.isfinite(array).all():
        raise ConfigError(f"runs={list(values)}: must be 2 or more finite numbers")
    variance = max(float(array.var(ddof=1)), least)
    return Estimate(difference=float(array.mean()), variances=(variance,), counts=(len(array),), level=level)


@dataclass(frozen=True)
class Times:
    """The times of one arm in seconds (or any positive number per run: samples, seconds a sample).

    Of crossing times also: `log_widths`, of each run w = ln(t_j / t_(j-1)), the evaluation interval in which
    it crossed, inf if its first evaluation met the target; `met`, whether each run reached the target, the
    others count at the budget. `slow_variance`: see `run_times.typical`. Raises ConfigError for a time that
    is not positive and finite.
    """

    seconds: tuple[float, ...]
    log_widths: tuple[float, ...] = ()
    slow_variance: float = 0.0
    met: tuple[bool, ...] = ()

    def __post_init__(self) -> None:
        for value in self.seconds:
            if not (value > 0 and math.isfinite(value)):
                raise ConfigError(f"seconds={value}: must be above 0 and finite")

    @property
    def logs(self) -> list[float]:
        """ln of the times."""
        return [math.log(value) for value in self.seconds]

    @property
    def grid_variance(self) -> float:
        """Mean of w²/12, the variance that the evaluation grid alone puts into ln T; 0 for fixed work."""
        return fmean(width**2 / 12 for width in self.log_widths) if self.log_widths else 0.0

    @property
    def missed(self) -> int:
        """How many runs missed the target."""
        return self.met.count(False)

    @property
    def rate_only(self) -> bool:
        """Whether fewer than half of the runs reached the target: only their share is reported, no time."""
        return 2 * self.missed > len(self.seconds)


@dataclass(frozen=True, kw_only=True)
class Ratio:
    """Time of the baseline over time of the arm: above 1 the arm is faster.

    `estimate`: the difference of the logarithms. `side`: "≥" if runs of the baseline missed the target, so
    that the upper end is not known; "≤" if runs of the arm did. `same_trajectory`: runs of one seed differ in
    their times alone, so `estimate` is of pairs. `alternative`: the estimate of the other kind, None where
    there are no pairs. `model_error`: of virtual time, part of both.
    """

    estimate: Estimate
    side: Side = ""
    same_trajectory: bool = False
    alternative: Estimate | None = None
    model_error: ModelError | None = None

    @property
    def point(self) -> float:
        """The ratio of geometric means."""
        return exponential(self.estimate.difference)

    @property
    def interval(self) -> Interval:
        """Of the true ratio, without the end that censored runs leave unknown."""
        ends = self.estimate.interval.exponential()
        return Interval(0.0 if self.side == "≤" else ends.low, math.inf if self.side == "≥" else ends.high)

    @property
    def low(self) -> float:
        return self.interval.low

    @property
    def high(self) -> float:
        return self.interval.high

    @property
    def other(self) -> Interval | None:
        """Welch's interval where `interval` is of pairs, else that of pairs; None without pairs."""
        return self.alternative.interval.exponential() if self.alternative else None

    @property
    def simulated(self) -> "Ratio":
        """The ratio of the times as they are recorded: without the model error."""
        if self.model_error is None:
            return self
        difference = self.estimate.difference + self.model_error.bias
        return replace(self, estimate=replace(self.estimate, difference=difference, fixed=()))

    @property
    def p_no_gain(self) -> float:
        """One-sided p of "the true ratio is at most 1"; 1 where only an upper bound is known."""
        return 1.0 if self.side == "≤" else self.estimate.p_no_gain

    def p_not_below(self, edge: float) -> float:
        """One-sided p of "the true ratio is at least `edge`"; 1 where only a lower bound is known."""
        return 1.0 if self.side == "≥" else self.estimate.p_not_below(math.log(edge))


def welch(base: Times, arm: Times, *, level: float = LEVEL) -> Ratio | None:
    """exp(mean ln T_base - mean ln T_arm) with the Welch interval on ln T.

    None below 3 runs on a side, where fewer than half of one reached the target, and where runs of both
    missed it. Each variance is at least the grid variance of its side, so that equal crossings never give an
    interval of no width, and at least its `slow_variance`.
    """
    sides = (base, arm)
    if any(len(times.seconds) < FEWEST_RUNS or times.rate_only for times in sides):
        return None
    if base.missed and arm.missed:
        return None
    of_base, of_arm = (
        mean_of(times.logs, least=max(times.grid_variance, times.slow_variance), level=level)
        for times in sides
    )
    return Ratio(estimate=of_base - of_arm, side="≥" if base.missed else "≤" if arm.missed else "")


def with_pairs(ratio: Ratio, base: Times, arm: Times, *, same_trajectory: bool) -> Ratio:
    """`ratio`, a result of `welch`, with the interval of pairs: run j of both sides has the same seed.

    The mean of ln T_base,j - ln T_arm,j with the paired t interval. With the same trajectory it replaces
    Welch's, and the evaluation grid cancels; else it is the alternative, of at least the grid variance of
    both sides.
    """
    least = 0.0 if same_trajectory else base.grid_variance + arm.grid_variance
    differences = [b - a for b, a in zip(base.logs, arm.logs, strict=True)]
    pairs = mean_of(differences, least=least, level=ratio.estimate.level)
    first, second = (pairs, ratio.estimate) if same_trajectory else (ratio.estimate, pairs)
    return replace(ratio, estimate=first, alternative=second, same_trajectory=same_trajectory)


def model_variance(error: ModelError, *, level: float) -> float:
    """Of one more error: sd² (1 + 1 / count), or more, so that an interval of it alone ends at `reach`."""
    reach = error.reach / float(t_limit(level, error.count - 1))
    return max(error.sd**2 * (1 + 1 / error.count), reach**2)


def with_model_error(ratio: Ratio, error: ModelError) -> Ratio:
    """`ratio` of simulated times without the bias of `error`, its intervals widened by one more error."""
    fixed = (model_variance(error, level=ratio.estimate.level) * error.count, error.count)

    def widened(made: Estimate) -> Estimate:
        return replace(made, difference=made.difference - error.bias, fixed=(fixed,))

    other = widened(ratio.alternative) if ratio.alternative else None
    return replace(ratio, estimate=widened(ratio.estimate), alternative=other, model_error=error)


def holm(p_values: Sequence[float]) -> tuple[float, ...]:
    """Holm-adjusted p values, in the order given: of k comparisons with one baseline, for "no gain"."""
    p = np.asarray(p_values, dtype=np.float64)
    order = np.argsort(p, kind="stable")
    adjusted = np.empty_like(p)
    adjusted[order] = np.maximum.accumulate(np.minimum(1.0, p[order] * np.arange(len(p), 0, -1)))
    return tuple(adjusted.tolist())
