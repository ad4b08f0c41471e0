"""Ratios of times: the rules' hand-worked numbers, the grid variance, and what stands beside the interval."""

import math

import pytest

from daso_bench.runner.report.statistics.ratio import Times, holm, paired, regret, welch
from daso_bench.strategies.errors import ConfigError

BASE = Times((100.0, 104.0, 96.0, 108.0, 92.0))
ARM = Times((80.0, 84.0, 76.0, 86.0, 75.0))


def test_the_hand_worked_welch_ratio() -> None:
    found = welch(BASE, ARM)
    assert found is not None
    assert (found.point, found.low, found.high) == pytest.approx((1.2467, 1.1393, 1.3642), abs=1e-4)
    assert found.df == pytest.approx(7.976, abs=1e-3)


def test_the_hand_worked_paired_ratio() -> None:
    found = paired(BASE, ARM)
    assert found is not None
    assert (found.point, found.low, found.high) == pytest.approx((1.2467, 1.2288, 1.2648), abs=1e-4)
    assert found.df == pytest.approx(4)


def test_an_arm_that_is_always_a_fifth_faster_has_a_paired_interval_of_no_width() -> None:
    found = paired(BASE, Times(tuple(0.8 * time for time in BASE.seconds)))
    assert found is not None
    assert (found.point, found.low, found.high) == pytest.approx((1.25, 1.25, 1.25), abs=1e-12)


@pytest.mark.parametrize("method", [welch, paired])
def test_two_runs_give_no_ratio_and_three_do(method: object) -> None:
    assert callable(method)
    assert method(Times(BASE.seconds[:2]), Times(ARM.seconds[:2])) is None
    assert method(Times(BASE.seconds[:3]), Times(ARM.seconds[:3])) is not None


def test_equal_crossings_get_their_width_from_the_grid_alone() -> None:
    base = Times((math.sqrt(100 * 105),) * 5, (math.log(105 / 100),) * 5)
    arm = Times((math.sqrt(80 * 84),) * 5, (math.log(84 / 80),) * 5)
    found = welch(base, arm)
    assert found is not None
    assert (found.point, found.low, found.high) == pytest.approx((1.25, 1.2246, 1.2759), abs=1e-4)
    assert found.df == pytest.approx(8)
    beside = paired(base, arm)
    assert beside is not None
    # t of 4 degrees of freedom, 2.776, on the same standard error.
    assert math.log(beside.high / beside.point) == pytest.approx(
        math.log(found.high / found.point) * 2.77645 / 2.30600, rel=1e-4
    )


def test_a_scatter_larger_than_the_grid_s_is_kept() -> None:
    plain, narrow = welch(BASE, ARM), welch(Times(BASE.seconds, (0.01,) * 5), Times(ARM.seconds, (0.01,) * 5))
    assert plain is not None
    assert narrow is not None
    assert narrow.interval == plain.interval


def test_a_crossing_at_the_first_evaluation_leaves_both_ends_open() -> None:
    found = welch(Times(BASE.seconds, (math.inf,) * 5), ARM)
    assert found is not None
    assert (found.low, found.high) == (0.0, math.inf)


def test_geometric_means_make_the_ratio_of_swapped_arms_its_reciprocal() -> None:
    there, back = welch(BASE, ARM), welch(ARM, BASE)
    assert there is not None
    assert back is not None
    assert (1 / back.point, 1 / back.high, 1 / back.low) == pytest.approx(
        (there.point, there.low, there.high)
    )


def test_medians_and_trimmed_means_stand_beside_the_ratio() -> None:
    found = welch(BASE, ARM)
    assert found is not None
    assert found.ratio_of_medians == pytest.approx(100 / 80)
    assert found.ratio_of_trimmed_means == pytest.approx(300 / 240)  # without 92, 108 and 75, 86
    few = welch(Times(BASE.seconds[:4]), Times(ARM.seconds[:4]))
    assert few is not None
    assert few.ratio_of_trimmed_means is None


def test_a_median_outside_the_interval_is_sensitive_to_outliers() -> None:
    calm = welch(BASE, ARM)
    assert calm is not None
    assert not calm.sensitive_to_outliers
    # Two fast runs pull every mean of the baseline; its median stays with the other three.
    torn = welch(Times((100.0, 100.0, 100.0, 60.0, 60.0)), Times((80.0,) * 5))
    assert torn is not None
    assert not torn.sensitive_to_outliers
    many = welch(Times((100.0,) * 70 + (70.0,) * 30), Times((80.0,) * 100))
    assert many is not None
    assert many.sensitive_to_outliers


def test_the_p_of_no_gain_agrees_with_the_interval() -> None:
    found = welch(BASE, ARM)
    assert found is not None
    level = 1 - 2 * found.p_no_gain
    assert found.estimate.interval(level).exponential().low == pytest.approx(1.0, abs=1e-6)


def test_holm_s_hand_worked_values_in_any_order() -> None:
    assert holm([0.01, 0.02, 0.03]) == pytest.approx((0.03, 0.04, 0.04))
    assert holm([0.03, 0.01, 0.02]) == pytest.approx((0.04, 0.03, 0.04))
    assert holm([0.6, 0.7]) == (1.0, 1.0)
    assert holm([0.04]) == (0.04,)
    assert holm([]) == ()


@pytest.mark.parametrize("p", [-0.1, 1.1, math.nan])
def test_a_p_outside_its_range_is_refused(p: float) -> None:
    with pytest.raises(ConfigError, match="p="):
        holm([0.1, p])


@pytest.mark.parametrize("bad", [0.0, -1.0, math.nan, math.inf])
def test_times_that_are_none_are_refused(bad: float) -> None:
    with pytest.raises(ConfigError, match="seconds="):
        Times((1.0, bad))


def test_widths_for_some_runs_only_or_below_0_are_refused() -> None:
    with pytest.raises(ConfigError, match="1 for 2 runs"):
        Times((1.0, 2.0), (0.1,))
    with pytest.raises(ConfigError, match=r"log_widths=-0\.1"):
        Times((1.0, 2.0), (0.1, -0.1))


def test_a_default_of_120_s_against_a_tuned_100_s_is_a_regret_of_20_percent() -> None:
    one = regret(Times((120.0,)), Times((100.0,)))
    assert one.point == pytest.approx(0.20)
    assert one.interval is None


def test_the_interval_of_the_regret_is_that_of_the_ratio_minus_1() -> None:
    found = regret(Times((100.0, 104.0, 96.0, 108.0, 92.0)), Times((80.0, 84.0, 76.0, 86.0, 75.0)))
    assert found.interval is not None
    assert (found.point, found.interval.low, found.interval.high) == pytest.approx(
        (0.2467, 0.1393, 0.3642), abs=1e-4
    )


def test_a_regret_needs_both_sides() -> None:
    with pytest.raises(ConfigError, match="no runs"):
        regret(Times(()), Times((100.0,)))
