"""Planning table B, exact and by simulation, and the power of "no loss"."""

import math

import numpy as np
import pytest
from planning_tables import runs_needed
from simulated_studies import log_sd, welch_of

from daso_bench.runner.report.statistics.planning import detectable, power

GAINS = (1.05, 1.10, 1.20, 1.50)
RUNS_NEEDED = {0.03: (8, 4, 3, 2), 0.05: (18, 6, 3, 3), 0.10: (67, 19, 7, 3)}
DETECTABLE = {0.03: (1.11, 1.06, 1.04), 0.05: (1.19, 1.11, 1.07), 0.10: (1.42, 1.23, 1.14)}


@pytest.mark.parametrize("cv", RUNS_NEEDED)
def test_planning_table_b(cv: float) -> None:
    for gain, expected in zip(GAINS, RUNS_NEEDED[cv], strict=True):
        assert abs(runs_needed(gain, cv) - expected) <= (1 if expected <= 20 else 2), gain
    assert [detectable(runs, log_sd(cv)) for runs in (3, 5, 10)] == pytest.approx(DETECTABLE[cv], abs=0.01)


@pytest.mark.parametrize(
    ("gain", "cv", "runs"), [(1.10, 0.05, 6), (1.20, 0.05, 3), (1.50, 0.10, 3), (1.05, 0.03, 2)]
)
def test_the_exact_power_is_that_of_simulated_studies(gain: float, cv: float, runs: int) -> None:
    rng = np.random.default_rng(5)
    base, arm = (rng.standard_normal((100_000, runs)) * log_sd(cv) for _ in range(2))
    log_ratio, half = welch_of(base + math.log(gain), arm)
    shown = float(np.mean(np.abs(log_ratio) > half))
    assert power(math.log(gain), log_sd(cv), runs) == pytest.approx(shown, abs=0.006)


def test_without_a_difference_power_is_the_error_rate_at_most() -> None:
    assert power(0.0, 0.05, 20) == pytest.approx(0.05, abs=0.002)
    assert power(0.0, 0.05, 5, level=0.90) == pytest.approx(0.10, abs=0.01)


@pytest.mark.parametrize(
    ("sd", "runs", "expected"),
    [(0.2, 5, 92), (0.3, 5, 61), (0.5, 5, 26), (0.2, 10, 100), (0.3, 10, 94), (0.5, 10, 56)],
)
def test_the_power_of_no_loss_is_that_of_the_rules(sd: float, runs: int, expected: float) -> None:
    assert 100 * power(0.5, sd, runs) == pytest.approx(expected, abs=1)


def test_far_above_what_it_can_detect_a_plan_has_power_1() -> None:
    """scipy's noncentral t is NaN there."""
    assert power(math.log(1.05), 0.05, 3000) == 1.0
    assert [power(1.0, 0.05, runs) for runs in (10, 1000, 100_000)] == [1.0, 1.0, 1.0]
