"""Slow runs, and runs that miss a target: which they are, by hand; rates, medians and one-sided ratios.

And how often the judged interval holds the ratio of typical runs: of studies of seven arms
`DASO_BENCH_STUDIES=2000 python -m pytest tests/runner/report/statistics/test_run_times.py` simulates 2,000,
by default there are 300.
"""

import math
import os
from itertools import product
from typing import Any

import numpy as np
import pytest
from sharing import there
from simulated_studies import cross, draw_logs, welch_of

from daso_bench.runner.records.target_crossing import Crossing, crossing
from daso_bench.runner.report.statistics.run_times import (
    LEAST_LOG,
    crossing_times,
    limits,
    median_s,
    typical,
    wilson,
)
from daso_bench.runner.report.statistics.several_arms import EACH_SIDE, Family
from daso_bench.runner.report.statistics.welch import Interval, Ratio, Times, error_of, t_limit, welch

COUNT = 20_000
STUDIES = int(os.environ.get("DASO_BENCH_STUDIES", "300"))
CVS = (0.03, 0.05, 0.10)
ARMS = 7


def test_a_run_above_four_scaled_mads_is_slow() -> None:
    """Median 100, deviations of ln about 0, 2, 2, 4 and 40 %: the limit is at exp(4 · 1.4826 · 0.0198)."""
    times = Times((100.0, 102.0, 98.0, 104.0, 149.0))
    made, slow = typical(times)
    limit = math.log(102.0) + 4 * 1.4826 * math.log(102 / 100)
    assert float(limits(np.array(times.logs))) == pytest.approx(limit)
    assert (made.seconds, slow) == ((100.0, 102.0, 98.0, 104.0), (4,))
    logs = [*times.logs[:4], limit]
    assert made.slow_variance == pytest.approx(np.var(logs, ddof=1))
    ratio = there(welch(Times((150.0, 151.0, 149.0, 150.0, 150.0)), made))
    assert ratio.estimate.variances[1] == made.slow_variance > np.var(logs[:4], ddof=1)
    assert ratio.estimate.counts == (5, 4)


@pytest.mark.parametrize(
    "seconds",
    [
        (100.0, 102.0, 98.0, 106.0, 101.0),
        (100.0, 102.0, 98.0, 60.0, 101.0),  # a fast run is no slow one
        (100.0, 100.0, 100.0, 100.0, 104.9),  # less than 5 % longer
        (100.0, 101.0, 99.0, 300.0),  # four runs are too few to tell
    ],
)
def test_no_run_of_these_is_slow(seconds: tuple[float, ...]) -> None:
    times = Times(seconds)
    assert typical(times) == (times, ())


def test_equal_times_but_one_leave_an_interval_with_width() -> None:
    made, slow = typical(Times((100.0,) * 4 + (150.0,)))
    assert slow == (4,)
    assert made.slow_variance == pytest.approx(LEAST_LOG**2 / 5)


def test_crossings_at_one_mark_but_for_the_next_marks_are_no_slow_runs() -> None:
    width = math.log(21 / 20)
    times = Times((100.0, 100.0, 100.0, 100.0, 100.0 * math.exp(width)), (width,) * 5)
    assert typical(times)[1] == ()
    far = Times((*times.seconds[:4], 150.0), times.log_widths)
    made, slow = typical(far)
    assert (slow, len(made.log_widths)) == ((4,), 4)


# ------------------------------------------------------------------ runs that miss the target


def to_target(*crossed: float, failed: int = 0, budget: float = 200.0) -> Times:
    """Runs that cross at these times, and then so many that miss the target."""
    missed = (False,) * failed
    return Times((*crossed, *[budget] * failed), met=(*[True] * len(crossed), *missed))


ONE_FAILED = to_target(100, 110, 120, 130, failed=1)


def test_the_hand_worked_arm_with_one_failure() -> None:
    assert ONE_FAILED.missed == 1
    assert (wilson(4, 5).low, wilson(4, 5).high) == pytest.approx((0.376, 0.964), abs=5e-4)
    assert median_s(ONE_FAILED) == 120


@pytest.mark.parametrize(
    ("arm", "median"),
    [
        (to_target(100, 110, failed=2), 110),  # half of the runs are enough
        (to_target(100, 100, 200, failed=1), 100),  # shares left: 1/2, 1/4
        (to_target(100, 150, 200, failed=2), 200),  # a failure at that moment was still seen: 3/5 · 2/3
        (to_target(100, 210, 220, failed=2), 210),  # after the budget failures are gone: 4/5 · 1/2
    ],
)
def test_the_median_counts_failures_until_the_budget(arm: Times, median: float) -> None:
    assert median_s(arm) == median


def test_two_of_five_give_a_rate_and_no_time() -> None:
    arm = to_target(100, 110, failed=3)
    assert arm.rate_only
    assert median_s(arm) is None
    assert welch(to_target(100, 100, 100), arm) is None
    assert welch(arm, to_target(100, 100, 100)) is None


def test_wilson_s_interval_stays_within_0_and_1() -> None:
    assert (wilson(0, 5).low, wilson(0, 5).high) == (0, pytest.approx(0.4345, abs=1e-4))
    assert (wilson(5, 5).low, wilson(5, 5).high) == (pytest.approx(0.5655, abs=1e-4), 1)


def test_failures_of_the_baseline_leave_the_upper_end_open() -> None:
    arm = to_target(80, 84, 76, 86, 75)
    found, at_budget = there(welch(ONE_FAILED, arm)), there(welch(Times(ONE_FAILED.seconds), arm))
    assert (found.side, found.point, found.p_no_gain) == ("≥", at_budget.point, at_budget.p_no_gain)
    assert found.interval == Interval(at_budget.low, math.inf)
    assert found.p_not_below(1.0) == 1


def test_failures_of_the_arm_leave_the_lower_end_open_and_show_no_gain() -> None:
    found = there(welch(to_target(180, 184, 176, 186, 175), ONE_FAILED))
    assert (found.side, found.low, found.p_no_gain) == ("≤", 0, 1)
    assert found.high < math.inf
    assert welch(ONE_FAILED, ONE_FAILED) is None


def crossed(stamp_s: float, after_s: float = 0.0) -> Crossing:
    """The crossing of a run that was evaluated at these seconds and met its target at the last."""
    rows = [{"train_s": time, "samples": time, "accuracy": 0.3} for time in (after_s,) if time]
    return there(crossing([*rows, {"train_s": stamp_s, "samples": stamp_s, "accuracy": 0.9}], 0.8))


def test_failures_count_at_the_budget_do_not_thin_the_grid_variance_and_are_no_slow_runs() -> None:
    made = crossing_times([crossed(110, 100), None, crossed(120, 110), *[crossed(110, 100)] * 2], 500.0)
    widths = [math.log(110 / 100), math.log(120 / 110), *[math.log(110 / 100)] * 2]
    assert made.seconds == pytest.approx(
        (math.sqrt(11_000), 500, math.sqrt(13_200), *[math.sqrt(11_000)] * 2)
    )
    assert made.met == (True, False, True, True, True)
    assert made.grid_variance == pytest.approx(sum(width**2 for width in widths) / 4 / 12)
    assert typical(made) == (made, ())
    assert crossing_times([None, None], 500.0) == Times((500.0, 500.0), met=(False, False))


def test_the_width_of_a_crossing_is_the_interval_it_lies_in() -> None:
    made = crossing_times([crossed(180, 90), crossed(90)], 500.0)
    assert made.log_widths == (pytest.approx(math.log(2)), math.inf)


# ------------------------------------------------------------------ how often the interval holds the truth


def disturbed(rng: np.random.Generator, shape: tuple[int, int], cv: float, factor: float) -> Any:
    """ln T of runs of which 10 % take `factor` times as long."""
    return draw_logs(rng, shape, cv) + np.where(rng.random(shape) < 0.1, math.log(factor), 0.0)


def judged(base: Any, arm: Any, squares: tuple[Any, Any] | None = None) -> tuple[Any, Any]:
    """The logarithm of each study's ratio, and its interval's half-width, as `typical` and `welch` make them.

    `squares`: w²/12 of the crossings of both sides [studies, runs].
    """
    means, variances, counts = [], [], []
    for place, logs in enumerate((base, arm)):
        grid = np.zeros_like(logs) if squares is None else squares[place]
        limit = limits(logs, grid.mean(axis=1))[:, None]
        kept = logs <= limit
        number = kept.sum(axis=1)
        mean = np.where(kept, logs, 0.0).sum(axis=1) / number
        within = np.where(kept, (logs - mean[:, None]) ** 2, 0.0).sum(axis=1) / (number - 1)
        at_limit = np.where(kept.all(axis=1), 0.0, np.minimum(logs, limit).var(axis=1, ddof=1))
        of_grid = np.where(kept, grid, 0.0).sum(axis=1) / number
        means.append(mean)
        variances.append(np.maximum(np.maximum(within, at_limit), of_grid))
        counts.append(number)
    error, df = error_of(variances, counts)
    return means[0] - means[1], t_limit(0.95, df) * error


def test_simulated_studies_are_judged_as_single_ones_are() -> None:
    rng = np.random.default_rng(7)
    sides = (disturbed(rng, (60, 5), 0.05, 1.5), disturbed(rng, (60, 5), 0.05, 1.5))
    widths = [rng.uniform(0.0, 0.08, (60, 5)) for _ in range(2)]
    log_ratio, half = judged(sides[0], sides[1], (widths[0] ** 2 / 12, widths[1] ** 2 / 12))
    slow = 0
    for row in range(60):
        times = [
            typical(Times(tuple(np.exp(logs[row])), tuple(width[row])))
            for logs, width in zip(sides, widths, strict=True)
        ]
        slow += sum(len(places) for _, places in times)
        mine = there(welch(times[0][0], times[1][0])).estimate
        assert mine.difference == pytest.approx(log_ratio[row])
        assert mine.interval.high - mine.difference == pytest.approx(half[row])
    assert slow > 30


@pytest.mark.parametrize("runs", [5, 10])
@pytest.mark.parametrize("cv", CVS)
@pytest.mark.parametrize("factor", [1.0, 1.5, 3.0])
def test_the_interval_holds_the_ratio_of_typical_runs(runs: int, cv: float, factor: float) -> None:
    """10 % of the runs of one arm take 1.5 or 3 times as long; of clean studies 93 to 97 % hold it."""
    rng = np.random.default_rng([runs, round(100 * cv)])
    base, arm = draw_logs(rng, (COUNT, runs), cv), disturbed(rng, (COUNT, runs), cv, factor)
    log_ratio, half = judged(base, arm)
    covered = float(np.mean(np.abs(log_ratio) <= half))
    assert covered >= 0.93
    assert factor > 1 or covered <= 0.97
    if factor == 3:  # what leaving them out is for: an interval that decides
        assert np.median(half) < 0.6 * np.median(welch_of(base, arm)[1]) or runs == 5


@pytest.mark.parametrize(("evaluations", "runs"), [(20, 5), (30, 10)])
def test_so_do_intervals_of_crossing_times(evaluations: int, runs: int) -> None:
    covered = []
    for cv, factor, phase in product((0.03, 0.10), (1.0, 1.5), np.arange(4) / 4):
        rng = np.random.default_rng([evaluations, round(100 * cv), round(10 * factor), round(4 * phase)])
        phases = rng.random((COUNT // 8, runs))
        logs = [
            disturbed(rng, phases.shape, cv, slow) + np.log(evaluations + phase) for slow in (1.0, factor)
        ]
        crossed = [cross(each, phases, 1.0) for each in logs]
        log_ratio, half = judged(crossed[0][0], crossed[1][0], (crossed[0][1], crossed[1][1]))
        covered.append(float(np.mean(np.abs(log_ratio) <= half)))
    assert min(covered) >= 0.93, covered
    assert np.mean(covered) <= 0.97


@pytest.mark.parametrize(("runs", "factor"), [(5, 1.0), (5, 1.5), (10, 1.0), (10, 3.0)])
def test_of_seven_equal_arms_hardly_one_is_declared_different(runs: int, factor: float) -> None:
    """In at most 5 of 100 studies: a gain or a loss whose interval and Holm-adjusted p both say so."""
    rng = np.random.default_rng([11, runs, round(10 * factor)])
    declared = 0
    for _ in range(STUDIES):
        logs = disturbed(rng, (ARMS + 1, runs), 0.05, factor)
        base, *arms = (typical(Times(tuple(np.exp(row))))[0] for row in logs)
        ratios = [there(welch(base, arm)) for arm in arms]
        declared += any(different(ratios, place) for place in range(ARMS))
    assert declared / STUDIES <= 0.05 + 2 * math.sqrt(0.05 * 0.95 / STUDIES)


def different(ratios: list[Ratio], place: int) -> bool:
    ratio = ratios[place]
    family = Family(own=ratio, others=[other for other in ratios if other is not ratio])
    gain = ratio.low > 1 and family.p_of_gain <= EACH_SIDE
    return gain or (ratio.high < 1 and family.p_of_loss(1.0) <= EACH_SIDE)
