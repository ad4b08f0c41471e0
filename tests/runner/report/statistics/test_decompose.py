"""Throughput times statistical efficiency, and the bound on what communication can save."""

import pytest

from daso_bench.runner.report.statistics.decompose import (
    ArmWork,
    balanced_bound,
    bound,
    bound_limit,
    decompose,
)
from daso_bench.strategies.errors import ConfigError

SPREAD = (0.98, 0.99, 1.0, 1 / 0.99, 1 / 0.98)  # of geometric mean 1


def work(samples: float, rate: float, *, scatter: bool = False) -> ArmWork:
    rates = [rate * share for share in (SPREAD if scatter else (1.0,) * 5)]
    return ArmWork(tuple(samples / each for each in rates), (samples,) * 5)


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
    two = ArmWork((1.0, 1.0), (10.0, 10.0))
    assert decompose(two, work(1e6, 1000)) is None


@pytest.mark.parametrize(("exposed_s", "waiting_s", "expected"), [(20, 0, 1.25), (20, 30, 2.0), (0, 0, 1.0)])
def test_the_bound_of_a_step_of_100(exposed_s: float, waiting_s: float, expected: float) -> None:
    assert bound(100, exposed_s=exposed_s, waiting_s=waiting_s) == pytest.approx(expected)


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
        ArmWork((1.0, 2.0), (1.0,))
    with pytest.raises(ConfigError, match="seconds=0"):
        ArmWork((1.0, 2.0), (1.0, 0.0))


@pytest.mark.parametrize(
    ("busy_s", "samples", "expected"),
    [
        ((1, 1, 2, 4), (1, 1, 1, 1), 0.6875 / 0.25),  # speeds 1, 1, 1/2, 1/4: their mean over the slowest
        ((4, 4, 4, 4), (4, 4, 2, 1), 1.0),  # samples as devices are fast: nothing is left to be gained
        ((2, 2), (8, 8), bound(4, exposed_s=1, waiting_s=1)),  # equal devices
    ],
)
def test_the_bound_of_perfect_balance(
    busy_s: tuple[float, ...], samples: tuple[float, ...], expected: float
) -> None:
    assert balanced_bound(4, busy_s=busy_s, samples=samples) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("busy_s", "samples", "said"),
    [((1,), (1, 1), "one each per rank"), ((), (), "one each per rank"), ((1, 0), (1, 1), "busy_s=0")],
)
def test_balance_without_every_rank_is_refused(
    busy_s: tuple[float, ...], samples: tuple[float, ...], said: str
) -> None:
    with pytest.raises(ConfigError, match=said):
        balanced_bound(4, busy_s=busy_s, samples=samples)
