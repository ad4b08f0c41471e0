"""Several workloads: geometric means, their interval, and performance profiles."""

import numpy as np
import pytest

from daso_bench.runner.scoring.ratio import Times
from daso_bench.runner.scoring.workloads import geometric_mean_of_ratios, performance_profile
from daso_bench.strategies.errors import ConfigError


def pair(ratio: float, sd: float = 0.0, seed: int = 0) -> tuple[Times, Times]:
    rng = np.random.default_rng(seed)
    base, arm = (np.exp(rng.standard_normal(5) * sd) for _ in range(2))
    return Times(tuple(ratio * base)), Times(tuple(arm))


FOUR = {"a": pair(1.0), "b": pair(2.0), "c": pair(2.0), "d": pair(4.0)}


def test_ratios_are_averaged_by_their_logarithms() -> None:
    found = geometric_mean_of_ratios(FOUR)
    assert found is not None
    assert found.point == pytest.approx(2.0)  # the arithmetic mean would say 2.25
    assert found.interval.low < 2.0 < found.interval.high


def test_fewer_than_four_workloads_or_a_missed_target_have_no_mean() -> None:
    assert geometric_mean_of_ratios({name: FOUR[name] for name in "abc"}) is None
    assert geometric_mean_of_ratios(FOUR | {"e": None}) is None


def test_workloads_that_agree_in_every_run_have_an_interval_of_no_width() -> None:
    found = geometric_mean_of_ratios({name: pair(1.5) for name in "abcd"})
    assert found is not None
    assert (found.interval.low, found.interval.high) == pytest.approx((1.5, 1.5))


def test_the_same_numbers_give_the_same_interval() -> None:
    noisy = {str(number): pair(1.5, 0.05, number) for number in range(6)}
    assert geometric_mean_of_ratios(noisy) == geometric_mean_of_ratios(noisy)


def test_the_interval_holds_the_truth_about_as_often_as_it_says() -> None:
    rng = np.random.default_rng(1)
    held = 0
    for study in range(100):
        ratios = 1.5 * np.exp(rng.standard_normal(8) * 0.2)
        noisy = {str(k): pair(float(ratio), 0.05, 100 * study + k) for k, ratio in enumerate(ratios)}
        found = geometric_mean_of_ratios(noisy)
        assert found is not None
        held += found.interval.holds(1.5)
    # 95 expected; a percentile bootstrap of 8 workloads holds it about 88 times.
    assert held >= 91


def test_a_workload_with_one_run_is_refused() -> None:
    with pytest.raises(ConfigError, match="runs of e=1"):
        geometric_mean_of_ratios(FOUR | {"e": (Times((1.0,)), Times((1.0, 1.0)))})


def test_a_profile_counts_workloads_within_tau_of_the_fastest() -> None:
    times = {
        "a": {"ddp": 100.0, "daso": 50.0, "lasgd": None},
        "b": {"ddp": 100.0, "daso": 100.0, "lasgd": 80.0},
        "c": {"ddp": 30.0, "daso": None},
        "d": {"ddp": None, "daso": None, "lasgd": None},
    }
    found = performance_profile(times, [1.0, 1.25, 2.0, 4.0])
    assert found == {
        "ddp": [0.25, 0.5, 0.75, 0.75],
        "daso": [0.25, 0.5, 0.5, 0.5],
        "lasgd": [0.25, 0.25, 0.25, 0.25],
    }


def test_a_tau_outside_the_profile_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"tau=0\.9"):
        performance_profile({}, [0.9])
    with pytest.raises(ConfigError, match="tau=5"):
        performance_profile({}, [5.0])
