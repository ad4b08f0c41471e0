"""A difference of two means and its t interval: the arithmetic under every interval of the scores.

The functions above the classes take numbers or whole arrays of simulated studies: there is one formula for
both. Source: docs/method.md, "Statistics of ratios".
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np
from scipy.special import ndtri, stdtr, stdtrit

from ....strategies.errors import ConfigError, at_least

LEVEL = 0.95  # `study.level`
_LARGEST_EXPONENT = 700.0  # beyond it exp() is infinite for all that a report could print


def t_limit(level: float, df: Any) -> Any:
    """The t that a two-sided interval of `level` reaches to, `df` degrees of freedom; numbers or arrays."""
    return stdtrit(df, _upper_share(level))


def normal_limit(level: float) -> float:
    """The same for the normal distribution: 1.96 at 0.95."""
    return float(ndtri(_upper_share(level)))


def _upper_share(level: float) -> float:
    if not 0.0 < level < 1.0:
        raise ConfigError(f"level={level}: must be above 0 and below 1")
    return 0.5 + 0.5 * level


def error_of(variances: Sequence[Any], counts: Sequence[int]) -> tuple[Any, Any]:
    """Standard error and Welch-Satterthwaite degrees of freedom of a sum of independent means.

    `variances`: of single runs, unbiased, one entry (number or array of studies) per mean; `counts`: runs
    behind each. One entry alone gives n - 1 degrees of freedom. No variance anywhere, or an infinite one: the
    sum of n - 1, which then decides nothing.
    """
    parts = [np.asarray(v, dtype=np.float64) / n for v, n in zip(variances, counts, strict=True)]
    total = sum(parts[1:], start=parts[0])
    known = (total > 0) & np.isfinite(total)
    # As shares of the whole, so that the squares of tiny variances do not vanish.
    whole = np.where(known, total, 1.0)
    pairs = list(zip(parts, counts, strict=True))
    lost = sum(np.where(known, part / whole, 0.0) ** 2 / (n - 1) for part, n in pairs)
    df = np.where(known, 1.0 / np.where(known, lost, 1.0), float(sum(n - 1 for n in counts)))
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

    def holds(self, value: float) -> bool:
        """Whether `value` lies in the interval, ends included."""
        return self.low <= value <= self.high

    def exponential(self) -> "Interval":
        """The interval of exp(x) for an interval of x."""
        return Interval(exponential(self.low), exponential(self.high))


def exponential(value: float) -> float:
    """exp(value), infinite where a float could not hold it."""
    return math.exp(value) if value < _LARGEST_EXPONENT else math.inf


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """A difference of means, and what its interval is made of.

    `variances`: of single runs, one of each side (Welch) or one of the differences (paired), in the squared
    unit of `difference`. `counts`: the runs behind each of them, 2 or more.
    """

    difference: float
    variances: tuple[float, ...]
    counts: tuple[int, ...]

    def __post_init__(self) -> None:
        for runs in self.counts:
            at_least("runs", runs, 2)

    @property
    def error(self) -> float:
        """The standard error of `difference`."""
        return float(error_of(self.variances, self.counts)[0])

    @property
    def df(self) -> float:
        """Degrees of freedom of the interval (Welch-Satterthwaite)."""
        return float(error_of(self.variances, self.counts)[1])

    def interval(self, level: float = LEVEL) -> Interval:
        """difference ± t·error, two-sided. Raises ConfigError for a level outside (0, 1)."""
        half = float(t_limit(level, self.df)) * self.error
        return Interval(self.difference - half, self.difference + half)

    def p_not_above(self, value: float = 0.0) -> float:
        """One-sided p of "the true difference is at most `value`": small means that it is above."""
        above = self.difference - value
        error = self.error
        if error == 0:
            return 0.0 if above > 0 else 1.0
        return float(stdtr(self.df, -above / error))

    def with_runs(self, runs: int) -> Self:
        """The estimate that `runs` runs on each side would give if difference and spread stayed."""
        return replace(self, counts=(runs,) * len(self.counts))


def welch(
    first: Sequence[float], second: Sequence[float], *, least: tuple[float, float] = (0.0, 0.0)
) -> Estimate:
    """mean(first) - mean(second) of independent runs; no variance counts as less than `least` of its side.

    Raises ConfigError for fewer than 2 values on a side or one that is not finite.
    """
    sides = [_finite(first), _finite(second)]
    return Estimate(
        difference=float(sides[0].mean() - sides[1].mean()),
        variances=tuple(max(float(side.var(ddof=1)), low) for side, low in zip(sides, least, strict=True)),
        counts=tuple(len(side) for side in sides),
    )


def paired(first: Sequence[float], second: Sequence[float], *, least: float = 0.0) -> Estimate:
    """The mean of first[i] - second[i]; the variance of the differences counts as `least` at least.

    Raises ConfigError for unequal numbers of runs, fewer than 2, or values that are not finite.
    """
    if len(first) != len(second):
        raise ConfigError(
            f"study.interval=paired: {len(first)} runs, {len(second)} runs; pairs need equal seeds, use welch"
        )
    differences = _finite(first) - _finite(second)
    return Estimate(
        difference=float(differences.mean()),
        variances=(max(float(differences.var(ddof=1)), least),),
        counts=(len(differences),),
    )


def _finite(values: Sequence[float]) -> Any:
    found = np.asarray(values, dtype=np.float64)
    if len(found) < 2 or not np.isfinite(found).all():
        raise ConfigError(f"runs={list(values)}: must be 2 or more finite numbers")
    return found
