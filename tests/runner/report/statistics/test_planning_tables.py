"""Planning tables A, C and D by simulation, fewer studies where noted than `planning_tables.py` takes."""

import numpy as np
import planning_tables
import pytest
from sharing import there
from simulated_studies import crossed_at, crossing_coverages, noisy_crossings, welch_coverage

from daso_bench.runner.records.target_crossing import crossing

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


# 10,000 studies a cell; the whole range of CVs is in `planning_tables.py`.
@pytest.mark.parametrize(("evaluations", "runs", "expected"), [(20, 5, (94.8, 96.6)), (30, 10, (94.3, 96.0))])
def test_the_range_of_coverages_is_that_of_planning_table_d(
    evaluations: int, runs: int, expected: tuple[float, float]
) -> None:
    found = [100 * share for share in crossing_coverages(evaluations, runs, (0.02, 0.10), 10_000)]
    assert (min(found), max(found)) == pytest.approx(expected, abs=1)


def test_the_script_prints_every_table_and_the_same_each_time(capsys: pytest.CaptureFixture[str]) -> None:
    assert planning_tables.main(["--repetitions", "100"]) == 0
    first = capsys.readouterr().out
    headings = [line.split(":")[0] for line in first.splitlines() if line.startswith("## ")]
    assert headings[:5] == ["## A", "## B", "## C", "## D", "## Verdicts"]
    rows = [line for line in first.splitlines() if line.startswith("|")]
    assert "| 5 % | 18 | 6 |" in first
    assert len(rows) == sum(2 + count for count in (6, 3, 4, 4, 6, 3))
    assert planning_tables.main(["--repetitions", "100"]) == 0
    assert capsys.readouterr().out == first
