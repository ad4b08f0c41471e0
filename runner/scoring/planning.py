"""The simulations behind planning tables A, C and D: coverage, half-widths, and what an evaluation grid does.

Source: the measuring rules (time to accuracy), "statistics", planning tables. Table B is exact: see `power`.
"""

from dataclasses import dataclass

import numpy as np

from .studies import Array, cross, draw_logs, welch_of

_AT_ONCE = 2_000_000  # numbers drawn at once by the bootstrap, to bound its memory
_PHASES = 8
_SHIFTS = (0.0, 0.3, 0.55)  # of the arm's median crossing against the baseline's, in marks
_FACTORS = (1.0, 1.4)  # times the samples that the arm needs


@dataclass(frozen=True, kw_only=True)
class Coverage:
    """Welch's interval: the share of studies whose interval holds the truth; median half-width (exp - 1)."""

    covered: float
    half_width: float


def welch_coverage(runs: int, cv: float, count: int, *, seed: int = 0) -> Coverage:
    """Table A, columns 2 and 3, from `count` studies of fixed work at a true ratio of 1."""
    rng = np.random.default_rng([seed, runs])
    base, arm = (draw_logs(rng, (count, runs), cv) for _ in range(2))
    log_ratio, half = welch_of(base, arm)
    return Coverage(
        covered=float(np.mean(np.abs(log_ratio) <= half)), half_width=float(np.expm1(np.median(half)))
    )


def bootstrap_coverage(
    runs: int, cv: float, count: int, *, draws: int = 1000, seed: int = 0
) -> tuple[float, float]:
    """Table A, columns 4 and 5: coverage of percentile bootstraps of geometric means and of medians."""
    rng = np.random.default_rng([seed, runs])
    base, arm = (draw_logs(rng, (count, runs), cv) for _ in range(2))
    held = np.zeros(2)
    size = max(1, _AT_ONCE // (draws * runs))
    for start in range(0, count, size):
        drawn = [_resampled(rng, side[start : start + size], draws) for side in (base, arm)]
        for place, middle in enumerate((np.mean, np.median)):
            ratios = middle(drawn[0], axis=2) - middle(drawn[1], axis=2)
            low, high = np.quantile(ratios, [0.025, 0.975], axis=1)
            held[place] += np.sum((low <= 0) & (high >= 0))
    return float(held[0] / count), float(held[1] / count)


def _resampled(rng: np.random.Generator, logs: Array, draws: int) -> Array:
    """Runs of each study drawn again: (studies, draws, runs)."""
    studies, runs = logs.shape
    chosen = rng.integers(runs, size=(studies, draws, runs), dtype=np.int16)
    return logs[np.arange(studies)[:, None, None], chosen]


@dataclass(frozen=True, kw_only=True)
class Scored:
    """Mean and standard deviation of a scored crossing over the true one."""

    mean: float
    sd: float


def noisy_crossings(
    evaluations: int, noise_points: float, count: int, *, seed: int = 0
) -> tuple[Scored, Scored]:
    """Table C: (stamp, midpoint) over the true crossing at 1, accuracy 0.75·(1 - exp(-3t)), random phase.

    `evaluations`: before the crossing; `noise_points`: sd of each evaluation's accuracy, in points.
    """
    rng = np.random.default_rng([seed, evaluations])
    marks = (np.arange(2 * evaluations) + rng.random((count, 1))) / evaluations
    accuracy = 0.75 * (1 - np.exp(-3 * marks)) + rng.standard_normal(marks.shape) * noise_points / 100
    met = accuracy >= 0.75 * (1 - np.exp(-3.0))
    first = np.argmax(met, axis=1)
    rows = np.arange(count)
    stamp = marks[rows, first]
    before = marks[rows, np.maximum(first - 1, 0)]
    scored = [Scored(mean=float(v.mean()), sd=float(v.std(ddof=1))) for v in (stamp, np.sqrt(before * stamp))]
    return scored[0], scored[1]


def crossing_coverage(
    evaluations: int,
    runs: int,
    cv: float,
    count: int,
    *,
    phase: float,
    shift: float = 0.0,
    factor: float = 1.0,
    fixed_grid: bool = False,
    seed: int = 0,
) -> float:
    """Share of `count` studies whose interval of the ratio of crossing times holds the true one.

    The baseline's median crossing lies `evaluations` + `phase` marks from the start, the arm's at `factor`
    times `evaluations`, + `phase` + `shift`. `fixed_grid`: marks without a phase per block, stamps scored
    instead of midpoints, no grid variance: what not to do.
    """
    rng = np.random.default_rng(
        [seed, evaluations, runs, round(1000 * cv), round(100 * (phase + 10 * shift))]
    )
    places = (evaluations + phase, factor * evaluations + phase + shift)
    phases = np.zeros((count, runs)) if fixed_grid else rng.random((count, runs))
    scored: list[Array] = []
    least: list[Array | float] = []
    for place in places:
        logs = np.log(place) + draw_logs(rng, (count, runs), cv)
        middle, squares = cross(logs, phases, 1.0)
        # The stamp lies half a width beyond the midpoint.
        scored.append(middle + np.sqrt(3 * squares) if fixed_grid else middle)
        least.append(0.0 if fixed_grid else squares.mean(axis=1))
    log_ratio, half = welch_of(scored[0], scored[1], least=(least[0], least[1]))
    return float(np.mean(np.abs(log_ratio - np.log(places[0] / places[1])) <= half))


def crossing_coverages(
    evaluations: int, runs: int, cvs: tuple[float, ...], count: int, *, fixed_grid: bool = False
) -> list[float]:
    """Table D: `crossing_coverage` of every cell: 8 phases, 3 shifts and 2 factors at each CV."""
    return [
        crossing_coverage(
            evaluations,
            runs,
            cv,
            count,
            phase=phase / _PHASES,
            shift=shift,
            factor=factor,
            fixed_grid=fixed_grid,
        )
        for cv in cvs
        for phase in range(_PHASES)
        for shift in _SHIFTS
        for factor in _FACTORS
    ]
