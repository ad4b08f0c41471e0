"""Checks of a study by itself: noise floor, placebo, and samples against a stored reference.

The noise floor is what two measurements of the same baseline differ by; nothing smaller is called a gain.
Source: docs/method.md, "Noise floor", "Study design" and "Validity and guard".
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from scipy.special import stdtr

from .model_error import ModelError
from .welch import FEWEST_RUNS, LEVEL, SIGNIFICANT, Ratio, Times, holm, mean_of


def distance(log_ratio: Any, half_width: Any = 0.0) -> Any:
    """The larger of u and 1/l, minus 1, of the interval exp(log_ratio ± half_width); numbers or arrays."""
    return np.expm1(np.abs(log_ratio) + half_width)


@dataclass(frozen=True, kw_only=True)
class NoiseFloor:
    """m_clock and m_fresh of a study as shares; None where A′ or A″ was not run (or below 3 runs).

    `biased`: whether A and A′ differ by more than chance. `unknown`: why `fresh` is None although A″ was run.
    """

    clock: float | None = None
    fresh: float | None = None
    biased: bool = False
    unknown: str = ""

    @property
    def floor(self) -> float | None:
        """m = max(m_clock, m_fresh) as a share; None if one is missing: then there is no verdict."""
        return None if self.clock is None or self.fresh is None else max(self.clock, self.fresh)

    @property
    def missing(self) -> list[str]:
        """Which seeds no second baseline was run with: "the same seeds" (A′), "fresh seeds" (A″)."""
        not_run = {
            "the same seeds": self.clock is None,
            "fresh seeds": self.fresh is None and not self.unknown,
        }
        return [name for name, holds in not_run.items() if holds]


def clock_floor(log_ratios: Sequence[float], *, level: float = LEVEL) -> NoiseFloor:
    """m_clock from δ_j = ln(T_A / T_A′) of each block; None below 3 blocks.

    Where A′ runs only the first part of the schedule, both times are per sample of that part.
    """
    if len(log_ratios) < FEWEST_RUNS:
        return NoiseFloor()
    estimate = mean_of(log_ratios, level=level)
    ends, of_ratio = estimate.interval, estimate.interval.exponential()
    clock = float(distance(estimate.difference, (ends.high - ends.low) / 2))
    return NoiseFloor(clock=clock, biased=not of_ratio.low <= 1.0 <= of_ratio.high)


def model_floor(errors: Sequence[ModelError], measured: NoiseFloor, jitters: bool) -> NoiseFloor:
    """m_clock in virtual time: the size of the model errors in `errors` that is typical, the largest of them.

    Two runs with the same seeds are copies there, unless steps have jitter (`jitters`): then `measured`, what
    A and A′ differ by, counts as well, and without it there is no floor.
    """
    typical = max((error.typical for error in errors), default=None)
    if not jitters:
        return NoiseFloor(clock=typical)
    return (
        measured if measured.clock is None else replace(measured, clock=max(measured.clock, typical or 0.0))
    )


def fresh_floor(ratio: Ratio | None) -> float | None:
    """m_fresh from the ratio A / A″; None without one, or where a run of A or A″ missed the target."""
    return None if ratio is None or ratio.side else float(distance(ratio.estimate.difference))


def placebo_differs(low: Any, high: Any, floor: Any) -> Any:
    """Whether a placebo is declared different: [low, high] of its ratio beyond the floor; also arrays."""
    return (low > 1 + floor) | (high < 1 / (1 + floor))


@dataclass(frozen=True, kw_only=True)
class Shift:
    """ln of how many times the samples of a stored reference were needed, and its one-sided p.

    `adjusted`: p after correction for all that was compared.
    """

    log_shift: float
    p: float
    adjusted: float

    @property
    def flagged(self) -> bool:
        """Whether the shift is significant at 5 %, after correction."""
        return self.adjusted < SIGNIFICANT


def shifts_of(pairs: Iterable[tuple[Times, Times]], *, sign: float = 1.0) -> list[Shift]:
    """Of each (stored reference, runs), samples to target, by a one-sided pooled t test on ln S_target.

    p is that of "not worse" (`sign` -1: of "not better"), adjusted by Holm over all pairs. Takes a run or
    more on each side, 3 in all.
    """
    shifts = [pooled(np.array(stored.logs), np.array(runs.logs), sign=sign) for stored, runs in pairs]
    adjusted = holm([p for _, p in shifts])
    return [
        Shift(log_shift=float(shift), p=float(p), adjusted=of_all)
        for (shift, p), of_all in zip(shifts, adjusted, strict=True)
    ]


def pooled(reference: Any, runs: Any, *, sign: float = 1.0) -> tuple[Any, Any]:
    """mean(runs) - mean(reference), and the one-sided p that sign times it is at most 0; on the last axis.

    scipy's `ttest_ind` gives NaN for one run on a side and for samples without scatter.
    """
    counts = (reference.shape[-1], runs.shape[-1])
    df = sum(counts) - 2
    squares = sum(
        np.square(values - values.mean(axis=-1, keepdims=True)).sum(axis=-1) for values in (reference, runs)
    )
    error = np.sqrt(squares / df * sum(1 / count for count in counts))
    shift = runs.mean(axis=-1) - reference.mean(axis=-1)
    # Without any scatter every shift is significant, and none is not.
    t = sign * shift / np.where(error > 0, error, 1.0)
    return shift, np.where(error > 0, stdtr(df, -t), np.where(sign * shift > 0, 0.0, 1.0))
