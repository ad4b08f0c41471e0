"""The planning tables of docs/method.md: A, C and D by simulation, B and the power of "no loss" exactly."""

import math
from itertools import count

import numpy as np
import pytest
from sharing import there
from simulated_studies import (
    crossed_at,
    crossing_coverages,
    log_sd,
    noisy_crossings,
    welch_coverage,
    welch_of,
)

from daso_bench.runner.records.target_crossing import crossing
from daso_bench.runner.report.statistics.welch import POWER
from daso_bench.runner.studies.planned_power import detectable, power

COUNT = 20_000
# Percent: n, CV -> Welch coverage, half-width.
TABLE_A = {
    (3, 0.05): (97, 12.5),
    (5, 0.03): (95, 4.4),
    (5, 0.05): (95, 7.5),
    (5, 0.10): (95, 15.4),
    (10, 0.05): (95, 4.8),
    (20, 0.05): (95, 3.2),
}
GAINS = (1.05, 1.10, 1.20, 1.50)
RUNS_NEEDED = {0.03: (8, 4, 3, 2), 0.05: (18, 6, 3, 3), 0.10: (67, 19, 7, 3)}
DETECTABLE = {0.03: (1.11, 1.06, 1.04), 0.05: (1.19, 1.11, 1.07), 0.10: (1.42, 1.23, 1.14)}
# Evaluations -> stamp without noise, midpoint at noise of 0, 0.2 and 0.5 points: mean and sd over the truth.
TABLE_C = {
    20: ((1.025, 0.014), (0.999, 0.014), (1.000, 0.023), (1.002, 0.037)),
    30: ((1.017, 0.010), (1.000, 0.010), (1.000, 0.018), (1.001, 0.033)),
    40: ((1.012, 0.007), (1.000, 0.007), (1.000, 0.016), (0.999, 0.031)),
    100: ((1.005, 0.003), (1.000, 0.003), (0.999, 0.012), (0.991, 0.024)),
}


@pytest.mark.parametrize(("runs", "cv"), TABLE_A)
def test_welch_coverage_and_half_widths_are_those_of_planning_table_a(runs: int, cv: float) -> None:
    covered, half_width = welch_coverage(runs, cv, COUNT)
    assert 100 * covered == pytest.approx(TABLE_A[runs, cv][0], abs=2)
    assert 100 * half_width == pytest.approx(TABLE_A[runs, cv][1], abs=0.5)


@pytest.mark.parametrize("cv", RUNS_NEEDED)
def test_planning_table_b(cv: float) -> None:
    for gain, expected in zip(GAINS, RUNS_NEEDED[cv], strict=True):
        needed = next(runs for runs in count(2) if power(math.log(gain), log_sd(cv), runs) >= POWER)
        assert abs(needed - expected) <= (1 if expected <= 20 else 2), gain
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


@pytest.mark.parametrize(("sd", "percents"), [(0.2, (92, 100)), (0.3, (61, 94)), (0.5, (26, 56))])
def test_the_power_of_no_loss_is_that_of_the_rules(sd: float, percents: tuple[float, float]) -> None:
    assert [100 * power(0.5, sd, runs) for runs in (5, 10)] == pytest.approx(percents, abs=1)


def test_far_above_what_it_can_detect_a_plan_has_power_1() -> None:
    """scipy's noncentral t is NaN there."""
    assert power(math.log(1.05), 0.05, 3000) == 1.0
    assert [power(1.0, 0.05, runs) for runs in (10, 1000, 100_000)] == [1.0, 1.0, 1.0]


@pytest.mark.parametrize("evaluations", TABLE_C)
def test_midpoints_are_right_within_1_percent_on_average_even_where_evaluations_scatter(
    evaluations: int,
) -> None:
    found = [noisy_crossings(evaluations, noise, COUNT) for noise in (0.0, 0.2, 0.5)]
    cells = [found[0][0], *(midpoint for _, midpoint in found)]
    for cell, expected in zip(cells, TABLE_C[evaluations], strict=True):
        assert cell == pytest.approx(expected, abs=0.003)
    assert all(abs(mean - 1) <= 0.01 for mean, _ in cells[1:])


def test_simulated_curves_cross_where_the_records_rule_says() -> None:
    met = np.random.default_rng(5).random((200, 12)) < np.linspace(0, 1.2, 12)
    for curve, place in zip(met.tolist(), crossed_at(met).tolist(), strict=True):
        rows = [{"accuracy": float(hit), "train_s": 1.0 + n, "samples": n} for n, hit in enumerate(curve)]
        assert there(crossing(rows, 0.5)).index == place


@pytest.mark.parametrize(("evaluations", "runs", "expected"), [(20, 5, (94.8, 96.6)), (30, 10, (94.3, 96.0))])
def test_the_range_of_coverages_is_that_of_planning_table_d(
    evaluations: int, runs: int, expected: tuple[float, float]
) -> None:
    found = [100 * share for share in crossing_coverages(evaluations, runs, (0.02, 0.10), 10_000)]
    assert (min(found), max(found)) == pytest.approx(expected, abs=1)
