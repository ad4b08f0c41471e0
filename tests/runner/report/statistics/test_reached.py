"""Runs that miss a target: rates, medians under censoring, and one-sided ratios."""

import math
from dataclasses import replace

import pytest
from sharing import there

from daso_bench.runner.records.target_crossing import crossing
from daso_bench.runner.report.statistics.reached import Reached, compare, log_width, median_s, wilson
from daso_bench.runner.report.statistics.welch import Interval, Times, welch


def runs(*crossed: float, failed: tuple[float, ...] = (), budget: float = 200.0) -> Reached:
    return Reached(
        seconds=(*crossed, *failed), met=(True,) * len(crossed) + (False,) * len(failed), budget_s=budget
    )


ONE_FAILED = runs(100, 110, 120, 130, failed=(200,))


def test_the_hand_worked_arm_with_one_failure() -> None:
    assert (ONE_FAILED.reached, ONE_FAILED.runs) == (4, 5)
    assert (wilson(4, 5).low, wilson(4, 5).high) == pytest.approx((0.376, 0.964), abs=5e-4)
    assert median_s(ONE_FAILED) == 120


@pytest.mark.parametrize(
    ("arm", "median"),
    [
        (runs(100, 110, failed=(200, 200)), 110),  # half of the runs are enough
        (runs(100, 100, 200, failed=(200,)), 100),  # shares left: 1/2, 1/4
        (runs(100, 150, 200, failed=(200, 200)), 200),  # a failure at that moment was still seen: 3/5 · 2/3
        (runs(100, 210, 220, failed=(200, 200)), 210),  # after the budget failures are gone: 4/5 · 1/2
    ],
)
def test_the_median_counts_failures_until_the_budget(arm: Reached, median: float) -> None:
    assert median_s(arm) == median


def test_two_of_five_give_a_rate_and_no_time() -> None:
    arm = runs(100, 110, failed=(200, 200, 200))
    assert arm.rate_only
    assert median_s(arm) is None
    assert compare(runs(100, 100, 100), arm) is None
    assert compare(arm, runs(100, 100, 100)) is None


def test_wilson_s_interval_stays_within_0_and_1() -> None:
    assert (wilson(0, 5).low, wilson(0, 5).high) == (0, pytest.approx(0.4345, abs=1e-4))
    assert (wilson(5, 5).low, wilson(5, 5).high) == (pytest.approx(0.5655, abs=1e-4), 1)


def test_all_reached_is_the_plain_ratio() -> None:
    base, arm = runs(100, 104, 96, 108, 92), runs(80, 84, 76, 86, 75)
    assert compare(base, arm) == welch(Times(base.seconds), Times(arm.seconds))


def test_failures_of_the_baseline_leave_the_upper_end_open() -> None:
    found = there(compare(ONE_FAILED, runs(80, 84, 76, 86, 75)))
    at_budget = there(welch(Times((100, 110, 120, 130, 200)), Times((80, 84, 76, 86, 75))))
    assert (found.side, found.point, found.p_no_gain) == ("≥", at_budget.point, at_budget.p_no_gain)
    assert found.interval == Interval(at_budget.low, math.inf)
    assert found.p_not_below(1.0) == 1


def test_failures_of_the_arm_leave_the_lower_end_open_and_show_no_gain() -> None:
    found = there(compare(runs(180, 184, 176, 186, 175), ONE_FAILED))
    assert (found.side, found.low, found.p_no_gain) == ("≤", 0, 1)
    assert found.high < math.inf
    assert compare(ONE_FAILED, ONE_FAILED) is None


def test_failures_do_not_thin_the_grid_variance() -> None:
    base = replace(runs(100, 100, 100, failed=(90,), budget=100.0), log_widths=(0.1,) * 3)
    arm = replace(runs(80, 80, 80), log_widths=(0.05,) * 3)
    found = there(compare(base, arm))
    assert found.estimate.variances == pytest.approx((0.1**2 / 12, 0.05**2 / 12))


def test_the_width_of_a_crossing_is_the_interval_it_lies_in() -> None:
    rows = [{"train_s": 90.0 * k, "samples": k, "accuracy": 0.2 * k} for k in range(1, 5)]
    assert log_width(there(crossing(rows, 0.4))) == pytest.approx(math.log(2))
    assert log_width(there(crossing(rows, 0.2))) == math.inf
