"""Ratios of times and differences of means: against scipy.stats, by hand-worked numbers, and Holm."""

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from scipy import stats
from sharing import there

from daso_bench.runner.report.statistics.welch import (
    Estimate,
    Interval,
    Ratio,
    Times,
    holm,
    mean_of,
    welch,
    with_pairs,
)
from daso_bench.runner.studies.planned_power import detectable
from daso_bench.strategies.errors import ConfigError

NAN = math.nan
values = st.lists(st.floats(-10, 10).map(lambda x: round(x, 6)), min_size=2, max_size=12)


def interval_at(level: float) -> Interval:
    return Estimate(difference=0.0, variances=(1.0,), counts=(5,), level=level).interval


@given(values, values)
@settings(deadline=None)  # the first call of scipy is slow
def test_the_welch_interval_and_p_are_those_of_scipy(first: list[float], second: list[float]) -> None:
    assume(len(set(first)) > 1 and len(set(second)) > 1)
    found = mean_of(first) - mean_of(second)
    theirs: Any = stats.ttest_ind(first, second, equal_var=False, alternative="greater")
    both: Any = stats.ttest_ind(first, second, equal_var=False)
    low, high = both.confidence_interval(0.95)
    assert found.df == pytest.approx(both.df)
    assert (found.interval.low, found.interval.high) == pytest.approx((low, high), abs=1e-9)
    assert found.p_no_gain == pytest.approx(theirs.pvalue, abs=1e-9)


def test_no_scatter_gives_an_interval_of_no_width_and_a_p_of_0_or_1() -> None:
    found = mean_of([1.0, 1.0, 1.0]) - mean_of([0.5, 0.5, 0.5])
    assert found.interval == Interval(0.5, 0.5)
    assert found.df == 4
    assert found.p_no_gain == 0
    assert (mean_of([0.5, 0.5]) - mean_of([0.5, 0.5])).p_no_gain == 1


def test_scatter_so_small_that_its_square_vanishes_still_has_degrees_of_freedom() -> None:
    found = Estimate(difference=0.0, variances=(1e-300, 1e-300), counts=(5, 5))
    assert found.df == pytest.approx(8)


@pytest.mark.parametrize(
    ("make", "said"),
    [
        *(
            (lambda level=level: interval_at(level), r"level=.*above 0 and below 1")
            for level in (0, 1, 95, NAN)
        ),
        *((lambda ends=ends: Interval(*ends), "in order") for ends in ((2.0, 1.0), (NAN, 1.0), (1.0, NAN))),
        (lambda: mean_of([1.0]), "2 or more finite"),
        (lambda: mean_of([1.0, NAN]), "2 or more finite"),
        *((lambda bad=bad: Times((1.0, bad)), "seconds=") for bad in (0.0, -1.0, NAN, math.inf)),
    ],
)
def test_what_is_no_sample_or_level_is_refused(make: Callable[[], object], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        make()


BASE = Times((100.0, 104.0, 96.0, 108.0, 92.0))
ARM = Times((80.0, 84.0, 76.0, 86.0, 75.0))


def ratio_of(base: Times = BASE, arm: Times = ARM, **more: Any) -> Ratio:
    return there(welch(base, arm, **more))


def test_the_hand_worked_ratio() -> None:
    ratio = ratio_of()
    assert (ratio.point, ratio.low, ratio.high) == pytest.approx((1.2467, 1.1393, 1.3642), abs=1e-4)
    assert ratio.estimate.df == pytest.approx(7.976, abs=1e-3)
    back = ratio_of(ARM, BASE)
    assert (1 / back.point, 1 / back.high, 1 / back.low) == pytest.approx(
        (ratio.point, ratio.low, ratio.high)
    )


def test_two_runs_give_no_ratio_and_three_do() -> None:
    assert welch(Times(BASE.seconds[:2]), Times(ARM.seconds[:2])) is None
    assert welch(Times(BASE.seconds[:3]), Times(ARM.seconds[:3])) is not None


def test_equal_crossings_get_their_width_from_the_grid_alone() -> None:
    base = Times((math.sqrt(100 * 105),) * 5, (math.log(105 / 100),) * 5)
    arm = Times((math.sqrt(80 * 84),) * 5, (math.log(84 / 80),) * 5)
    ratio = ratio_of(base, arm)
    assert (ratio.point, ratio.low, ratio.high) == pytest.approx((1.25, 1.2246, 1.2759), abs=1e-4)
    assert ratio.estimate.df == pytest.approx(8)
    # A scatter that is larger than the grid's is kept.
    narrow = ratio_of(Times(BASE.seconds, (0.01,) * 5), Times(ARM.seconds, (0.01,) * 5))
    assert narrow.interval == ratio_of().interval


def test_a_crossing_at_the_first_evaluation_leaves_both_ends_open() -> None:
    assert ratio_of(Times(BASE.seconds, (math.inf,) * 5)).interval == Interval(0.0, math.inf)


def test_the_p_of_no_gain_agrees_with_the_interval() -> None:
    p = ratio_of().p_no_gain
    assert ratio_of(level=1 - 2 * p).low == pytest.approx(1.0, abs=1e-6)


def test_the_p_of_no_loss_agrees_with_the_interval_at_any_edge() -> None:
    for edge in (1.0, 1.3, 1.5):
        p = ratio_of().p_not_below(edge)
        level = abs(1 - 2 * p)
        ends = ratio_of(level=level)
        assert (ends.high if p < 0.5 else ends.low) == pytest.approx(edge, abs=1e-6)
    assert ratio_of().p_not_below(1.0) == pytest.approx(1 - ratio_of().p_no_gain)
    assert Estimate(difference=-0.1, variances=(0.0,), counts=(5,)).p_not_below(0) == 0


def test_holm_s_hand_worked_values_in_any_order() -> None:
    assert holm([0.01, 0.02, 0.03]) == pytest.approx((0.03, 0.04, 0.04))
    assert holm([0.03, 0.01, 0.02]) == pytest.approx((0.04, 0.03, 0.04))
    assert holm([0.6, 0.7]) == (1.0, 1.0)
    assert holm([0.04]) == (0.04,)
    assert holm([]) == ()


@pytest.mark.parametrize(("runs", "cv"), [(5, 0.05), (5, 0.10), (10, 0.10)])
def test_what_a_finished_study_could_detect_is_what_it_was_planned_to(runs: int, cv: float) -> None:
    variance = math.log1p(cv**2)
    made = Estimate(difference=0.0, variances=(variance, variance), counts=(runs, runs))
    assert made.detectable == pytest.approx(math.log(detectable(runs, math.sqrt(variance))), rel=0.04)
    alone = Estimate(difference=0.0, variances=(0.0, 0.0), counts=(runs, runs), fixed=((variance, 55),))
    assert alone.detectable == pytest.approx(2.86 * math.sqrt(variance / 55), rel=0.01)
    assert replace(alone, counts=(100, 100)).interval == alone.interval


def test_pairs_leave_out_what_both_runs_of_a_seed_share() -> None:
    base, arm = Times((1.0, 2.0, 4.0), (0.2,) * 3), Times((0.8, 1.6, 3.2), (0.2,) * 3)
    plain = there(welch(base, arm))
    same = with_pairs(plain, base, arm, same_trajectory=True)
    assert (same.low, same.point, same.high) == pytest.approx((1.25, 1.25, 1.25))
    assert there(same.other) == plain.interval
    other = with_pairs(plain, base, arm, same_trajectory=False)
    assert other.interval == plain.interval
    # Grid variance of both sides, 2 · 0.2² / 12, over three pairs; t with 2 degrees of freedom.
    half = 4.3027 * math.sqrt(2 * 0.2**2 / 12 / 3)
    assert there(other.other).high == pytest.approx(1.25 * math.exp(half), rel=1e-4)
