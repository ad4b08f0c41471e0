"""Thousands of simulated studies at once, scored by the formulas and rules that score real ones.

Arrays of ln T have the shape (studies, runs). The first half simulates what verdicts say how often, the
second half the planning tables A, C and D; table B is exact.
"""

import math
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np
from numpy.typing import NDArray

from daso_bench.runner.report.statistics.noise_floor import distance
from daso_bench.runner.report.statistics.verdict import (
    CONTRADICTED,
    INCONCLUSIVE,
    PARTLY,
    REPRODUCED,
    TOO_NOISY,
    bands,
    number_rule,
)
from daso_bench.runner.report.statistics.welch import LEVEL, error_of, t_limit

CLOCK_SD = 0.007  # of ln(A / A′)
Array = NDArray[np.float64]


def log_sd(cv: float) -> float:
    """Standard deviation of ln T for log-normal times of coefficient of variation `cv` (a share)."""
    return math.sqrt(math.log1p(cv**2))


def draw_logs(
    rng: np.random.Generator, shape: tuple[int, ...], cv: float, *, heavy_tails: bool = False
) -> Array:
    """ln T of runs with median 1: normal, or t with 5 degrees of freedom and the same variance.

    `cv`: of log-normal times, a share.
    """
    if heavy_tails:
        return rng.standard_t(5, shape) * (log_sd(cv) * np.sqrt(3 / 5))
    return rng.standard_normal(shape) * log_sd(cv)


def welch_of(base: Array, arm: Array, *, least: tuple[Any, Any] = (0.0, 0.0)) -> tuple[Array, Array]:
    """mean ln T_base - mean ln T_arm and its interval's half-width, by study; `least`: grid variances."""
    sides = (base, arm)
    variances = [np.maximum(side.var(axis=1, ddof=1), low) for side, low in zip(sides, least, strict=True)]
    error, df = error_of(variances, [side.shape[1] for side in sides])
    return base.mean(axis=1) - arm.mean(axis=1), t_limit(LEVEL, df) * error


def clock_floors(deltas: Array) -> Array:
    """m_clock of each study from its ln(T_A / T_A′)."""
    error, df = error_of([deltas.var(axis=1, ddof=1)], [deltas.shape[1]])
    return distance(deltas.mean(axis=1), t_limit(LEVEL, df) * error)


@dataclass(frozen=True, kw_only=True)
class Studies:
    """What many studies found at a true gain of 1: a gain g only adds ln g to `log_ratio`."""

    log_ratio: Array
    half_width: Array
    clock_floor: Array
    fresh_floor: Array

    @property
    def floor(self) -> Array:
        """The noise floor m of each study, as a share."""
        return np.maximum(self.clock_floor, self.fresh_floor)

    def interval(self, gain: float = 1.0) -> tuple[Array, Array]:
        """[low, high] of the ratio in each study at the true gain `gain`."""
        middle = self.log_ratio + np.log(gain)
        return np.exp(middle - self.half_width), np.exp(middle + self.half_width)


def from_logs(
    base: Array, fresh: Array, arm: Array, deltas: Array, *, least: tuple[Any, Any] = (0.0, 0.0)
) -> Studies:
    """The studies with these ln T of A, A″ and the arm and these ln(T_A / T_A′).

    `least`: the grid variances of A and the arm, of each study.
    """
    log_ratio, half_width = welch_of(base, arm, least=least)
    return Studies(
        log_ratio=log_ratio,
        half_width=half_width,
        clock_floor=clock_floors(deltas),
        fresh_floor=distance(base.mean(axis=1) - fresh.mean(axis=1)),
    )


def simulate(runs: int, cv: float, count: int, *, heavy_tails: bool = False, spread: float = 1.0) -> Studies:
    """`count` studies of fixed work with `runs` runs each of A, A″ and the arm.

    `spread`: how many times the arm's ln T scatters as much as A's. The random numbers are the same at
    every `cv`, so that what changes between them is not chance.
    """
    rng = np.random.default_rng([0, runs])
    base, fresh, arm = (draw_logs(rng, (count, runs), cv, heavy_tails=heavy_tails) for _ in range(3))
    deltas = rng.standard_normal((count, runs)) * CLOCK_SD
    return from_logs(base, fresh, arm * spread, deltas)


def cross(log_samples: Array, phases: Array, every: float) -> tuple[Array, Array]:
    """(scored ln samples, w²/12) of runs that meet the target at `log_samples`; marks at (k + phase)·every.

    Scored is the midpoint of the logarithms of the marks around it; from the first mark on, see the rules'
    "crossing". A target met before any mark is scored at the first one with no width.
    """
    samples = np.exp(log_samples)
    place = np.ceil(samples / every - phases)
    stamp = np.log((np.maximum(place, 0) + phases) * every)
    first = place <= 0
    before = np.where(first, stamp, np.log(np.where(first, 1.0, place - 1 + phases) * every))
    return (before + stamp) / 2, np.square(stamp - before) / 12


def simulate_crossings(runs: int, cv: float, count: int, *, evaluations: int) -> Studies:
    """`count` studies of crossing times: `evaluations` before the median crossing, a phase per block.

    A gain is one of throughput here: all arms need the same samples, and time per sample cancels.
    """
    rng = np.random.default_rng([0, runs, evaluations])
    phases = rng.random((count, runs))
    crossed = [cross(draw_logs(rng, (count, runs), cv), phases, 1 / evaluations) for _ in range(3)]
    (base, of_base), (fresh, _), (arm, of_arm) = crossed
    deltas = rng.standard_normal((count, runs)) * CLOCK_SD
    return from_logs(base, fresh, arm, deltas, least=(of_base.mean(axis=1), of_arm.mean(axis=1)))


@dataclass(frozen=True, kw_only=True)
class Shares:
    """Shares of studies by verdict; `inconclusive` includes "too noisy", `wrong`: see the function."""

    contradicted: float
    partly: float
    reproduced: float
    inconclusive: float
    wrong: float


def wrong(rule: Any, low: Any, floor: Any, value: float, gain: float) -> Any:
    """Whether a printed statement, remarks included, is false at the true gain `gain`.

    Rule 3 says gain >= b and, exceeded, gain > d; 4 says gain < a; 5 says 1 < gain < value; "a gain" of rules
    4 and 6 says gain > 1; rule 2 says nothing. The `typical` reading: for `up_to` "smaller here" says
    nothing else of the configuration.
    """
    a, b, d = bands(value)
    remarked = np.isin(rule, (CONTRADICTED, INCONCLUSIVE)) & (low > 1 + floor)
    return np.select(
        [rule == REPRODUCED, rule == CONTRADICTED, rule == PARTLY],
        [
            (gain < b) | ((low > d) & (gain <= d)),
            (gain >= a) | (remarked & (gain <= 1)),
            np.asarray(not 1 < gain < value),
        ],
        remarked & (gain <= 1),
    )


def shares(studies: Studies, value: float, gain: float) -> Shares:
    """The verdicts on a claim of `value` times as fast when the true gain is `gain`."""
    low, high = studies.interval(gain)
    rules = number_rule(low, high, studies.floor, value)
    counted = np.bincount(rules, minlength=INCONCLUSIVE + 1) / len(rules)
    return Shares(
        contradicted=float(counted[CONTRADICTED]),
        partly=float(counted[PARTLY]),
        reproduced=float(counted[REPRODUCED]),
        inconclusive=float(counted[INCONCLUSIVE] + counted[TOO_NOISY]),
        wrong=float(np.mean(wrong(rules, low, studies.floor, value, gain))),
    )


# ------------------------------------------------------------------ planning tables A, C and D


def welch_coverage(runs: int, cv: float, count: int) -> tuple[float, float]:
    """Table A, columns 2 and 3, from `count` studies of fixed work at a true ratio of 1.

    The share of studies whose Welch interval holds the truth, and the median half-width (exp - 1).
    """
    rng = np.random.default_rng([0, runs])
    base, arm = (draw_logs(rng, (count, runs), cv) for _ in range(2))
    log_ratio, half = welch_of(base, arm)
    return float(np.mean(np.abs(log_ratio) <= half)), float(np.expm1(np.median(half)))


def crossed_at(met: Any) -> Any:
    """Where each curve crossed, from which evaluations met the target [curves, evaluations] (all crossed)."""
    padded = np.pad(met.astype(int), ((0, 0), (1, 0)))
    padded = np.concatenate([padded, padded[:, -1:]], axis=1)
    return np.argmax(padded[:, :-2] + padded[:, 1:-1] + padded[:, 2:] >= 2, axis=1)


def noisy_crossings(evaluations: int, noise_points: float, count: int) -> list[tuple[float, float]]:
    """Table C: (stamp, midpoint) over the true crossing at 1, accuracy 0.75·(1 - exp(-3t)), random phase.

    `evaluations`: before the crossing; `noise_points`: sd of each evaluation's accuracy, in points.
    """
    rng = np.random.default_rng([0, evaluations])
    marks = (np.arange(2 * evaluations) + rng.random((count, 1))) / evaluations
    accuracy = 0.75 * (1 - np.exp(-3 * marks)) + rng.standard_normal(marks.shape) * noise_points / 100
    first = crossed_at(accuracy >= 0.75 * (1 - np.exp(-3.0)))
    rows = np.arange(count)
    stamp = marks[rows, first]
    midpoint = np.sqrt(marks[rows, np.maximum(first - 1, 0)] * stamp)
    return [(float(times.mean()), float(times.std(ddof=1))) for times in (stamp, midpoint)]


def crossing_coverages(evaluations: int, runs: int, cvs: tuple[float, ...], count: int) -> list[float]:
    """Table D: shares of `count` studies whose interval of the ratio of crossing times holds the true one.

    One for each of 8 phases, 3 shifts and 2 factors at each CV: the baseline's median crossing lies
    `evaluations` + phase marks from the start, the arm's at factor times `evaluations`, + phase + shift.
    """
    covered = []
    for cv, eighth, shift, factor in product(cvs, range(8), (0.0, 0.3, 0.55), (1.0, 1.4)):
        phase = eighth / 8
        rng = np.random.default_rng(
            [0, evaluations, runs, round(1000 * cv), round(100 * (phase + 10 * shift))]
        )
        places = (evaluations + phase, factor * evaluations + phase + shift)
        phases = rng.random((count, runs))
        sides = [cross(np.log(place) + draw_logs(rng, (count, runs), cv), phases, 1.0) for place in places]
        (base, of_base), (arm, of_arm) = sides
        log_ratio, half = welch_of(base, arm, least=(of_base.mean(axis=1), of_arm.mean(axis=1)))
        covered.append(float(np.mean(np.abs(log_ratio - np.log(places[0] / places[1])) <= half)))
    return covered
