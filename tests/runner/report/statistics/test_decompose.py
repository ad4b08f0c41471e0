"""Throughput times statistical efficiency, and the bound on what communication can save."""

import pytest

from daso_bench.runner.report.statistics.decompose import Work, balanced_bound, bound, bound_limit, decompose
from daso_bench.strategies.errors import ConfigError

SPREAD = (0.98, 0.99, 1.0, 1 / 0.99, 1 / 0.98)  # of geometric mean 1


def work(samples: float, rate: float, *, scatter: bool = False) -> Work:
    rates = [rate * share for share in (SPREAD if scatter else (1.0,) * 5)]
    return Work(tuple(samples / each for each in rates), (samples,) * 5)


def test_the_hand_worked_speed_up_is_throughput_times_statistical_efficiency() -> None:
    found = decompose(work(1e6, 1000), work(1.2e6, 1600))
    assert found is not None
    parts = (found.throughput.point, found.statistical.point)
    assert parts == pytest.approx((1.6, 0.8333), abs=1e-4)
    assert parts[0] * parts[1] == pytest.approx((1e6 / 1000) / (1.2e6 / 1600))


def test_for_fixed_work_all_of_it_is_throughput() -> None:
    found = decompose(work(1e6, 1000, scatter=True), work(1e6, 1600, scatter=True))
    assert found is not None
    assert (found.statistical.low, found.statistical.high) == pytest.approx((1.0, 1.0))
    assert found.throughput.low < 1.6 < found.throughput.high


def test_two_runs_are_not_decomposed() -> None:
    two = Work((1.0, 1.0), (10.0, 10.0))
    assert decompose(two, work(1e6, 1000)) is None


def test_a_step_of_100_ms_with_20_ms_exposed_has_a_bound_of_1_25() -> None:
    assert bound(100, exposed_s=20) == pytest.approx(1.25)
    assert bound(100, exposed_s=20, waiting_s=30) == pytest.approx(2.0)
    assert bound(100, exposed_s=0) == 1.0


def test_the_upper_limit_of_the_bound_is_one_sided() -> None:
    bounds = [1.25 * share for share in SPREAD]
    limit = bound_limit(bounds)
    assert limit is not None
    # sd of the logarithms .015956, t of 4 degrees of freedom at 0.95 is 2.1318.
    assert limit == pytest.approx(1.25 * 1.01533, abs=1e-4)
    assert bound_limit(bounds[:2]) is None


@pytest.mark.parametrize(
    ("parts", "said"),
    [((-1.0, 0.0), "exposed_s=-1"), ((0.0, -1.0), "waiting_s=-1"), ((60.0, 40.0), "must be > 0")],
)
def test_parts_that_do_not_fit_in_the_step_are_refused(parts: tuple[float, float], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        bound(100, exposed_s=parts[0], waiting_s=parts[1])


def test_work_without_samples_for_each_run_is_refused() -> None:
    with pytest.raises(ConfigError, match="one each per run"):
        Work((1.0, 2.0), (1.0,))
    with pytest.raises(ConfigError, match="seconds=0"):
        Work((1.0, 2.0), (1.0, 0.0))


def test_perfect_balance_is_the_mean_speed_over_the_slowest_one() -> None:
    """Speeds 1, 1, 1/2, 1/4 with equal samples, paced by the slowest: 4 s of training."""
    assert balanced_bound(4, busy_s=(1, 1, 2, 4), samples=(1, 1, 1, 1)) == pytest.approx(0.6875 / 0.25)


def test_of_equal_devices_balance_changes_nothing() -> None:
    assert balanced_bound(100, busy_s=(50, 50), samples=(8, 8)) == bound(100, exposed_s=20, waiting_s=30)


def test_samples_that_are_dealt_as_devices_are_fast_leave_nothing() -> None:
    assert balanced_bound(4, busy_s=(4, 4, 4, 4), samples=(4, 4, 2, 1)) == pytest.approx(1.0)


@pytest.mark.parametrize(
    ("busy_s", "samples", "said"),
    [((1,), (1, 1), "one each per rank"), ((), (), "one each per rank"), ((1, 0), (1, 1), "busy_s=0")],
)
def test_balance_without_every_rank_is_refused(
    busy_s: tuple[float, ...], samples: tuple[float, ...], said: str
) -> None:
    with pytest.raises(ConfigError, match=said):
        balanced_bound(4, busy_s=busy_s, samples=samples)
