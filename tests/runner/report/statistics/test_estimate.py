"""Differences of means and their t intervals, against scipy.stats and by hand."""

import math
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from scipy import stats

from daso_bench.runner.report.statistics import estimate
from daso_bench.runner.report.statistics.estimate import Estimate, Interval
from daso_bench.strategies.errors import ConfigError

values = st.lists(st.floats(-10, 10).map(lambda x: round(x, 6)), min_size=2, max_size=12)


@given(values, values)
def test_the_welch_interval_and_p_are_those_of_scipy(first: list[float], second: list[float]) -> None:
    assume(len(set(first)) > 1 and len(set(second)) > 1)
    found = estimate.welch(first, second)
    theirs: Any = stats.ttest_ind(first, second, equal_var=False, alternative="greater")
    both: Any = stats.ttest_ind(first, second, equal_var=False)
    low, high = both.confidence_interval(0.95)
    assert found.df == pytest.approx(both.df)
    assert (found.interval().low, found.interval().high) == pytest.approx((low, high), abs=1e-9)
    assert found.p_not_above() == pytest.approx(theirs.pvalue, abs=1e-9)


@given(st.lists(st.tuples(st.floats(-10, 10), st.floats(-10, 10)), min_size=2, max_size=12))
def test_the_paired_interval_is_that_of_the_differences(pairs: list[tuple[float, float]]) -> None:
    differences = [first - second for first, second in pairs]
    assume(max(differences) - min(differences) > 1e-6)
    found = estimate.paired([first for first, _ in pairs], [second for _, second in pairs])
    theirs: Any = stats.ttest_1samp(differences, 0.0)
    low, high = theirs.confidence_interval(0.95)
    assert found.df == pytest.approx(len(pairs) - 1)
    assert (found.interval().low, found.interval().high) == pytest.approx((low, high), abs=1e-9)


def test_no_scatter_gives_an_interval_of_no_width_and_a_p_of_0_or_1() -> None:
    found = estimate.welch([1.0, 1.0, 1.0], [0.5, 0.5, 0.5])
    assert found.interval() == Interval(0.5, 0.5)
    assert found.df == 4
    assert found.p_not_above() == 0
    assert found.p_not_above(0.5) == 1


def test_scatter_so_small_that_its_square_vanishes_still_has_degrees_of_freedom() -> None:
    found = Estimate(difference=0.0, variances=(1e-300, 1e-300), counts=(5, 5))
    assert found.df == pytest.approx(8)


def test_an_unknown_scatter_leaves_both_ends_open() -> None:
    found = Estimate(difference=0.2, variances=(math.inf, 0.1), counts=(5, 5))
    assert found.interval() == Interval(-math.inf, math.inf)
    assert found.interval().exponential() == Interval(0.0, math.inf)


def test_more_runs_narrow_the_interval_of_the_same_estimate() -> None:
    found = Estimate(difference=0.2, variances=(0.04, 0.04), counts=(5, 5))
    assert found.with_runs(20).counts == (20, 20)
    widths = [one.interval().high - one.interval().low for one in (found, found.with_runs(20))]
    # Twice as narrow by the root of n, and t falls from 2.306 to 2.024 (8 and 38 degrees of freedom).
    assert widths[0] / widths[1] == pytest.approx(2 * 2.30600 / 2.02439, abs=1e-4)


def test_a_higher_level_is_a_wider_interval() -> None:
    found = Estimate(difference=0.0, variances=(1.0,), counts=(5,))
    assert found.interval(0.95).high == pytest.approx(2.77645 / math.sqrt(5), abs=1e-5)
    assert found.interval(0.99).high == pytest.approx(4.60409 / math.sqrt(5), abs=1e-5)


@pytest.mark.parametrize("level", [0.0, 1.0, 95.0, math.nan])
def test_a_level_that_is_no_share_is_refused(level: float) -> None:
    with pytest.raises(ConfigError, match=r"level=.*above 0 and below 1"):
        Estimate(difference=0.0, variances=(1.0,), counts=(5,)).interval(level)


@pytest.mark.parametrize(("low", "high"), [(2.0, 1.0), (math.nan, 1.0), (1.0, math.nan)])
def test_ends_out_of_order_or_not_numbers_are_refused(low: float, high: float) -> None:
    with pytest.raises(ConfigError, match="in order"):
        Interval(low, high)


def test_runs_that_cannot_be_averaged_are_refused() -> None:
    with pytest.raises(ConfigError, match="2 or more finite"):
        estimate.welch([1.0], [1.0, 2.0])
    with pytest.raises(ConfigError, match="2 or more finite"):
        estimate.welch([1.0, math.nan], [1.0, 2.0])
    with pytest.raises(ConfigError, match="pairs need equal seeds"):
        estimate.paired([1.0, 2.0], [1.0, 2.0, 3.0])
    with pytest.raises(ConfigError, match="runs=1"):
        Estimate(difference=0.0, variances=(1.0,), counts=(1,))
