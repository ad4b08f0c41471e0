"""Planning tables A, C and D by simulation, fewer studies where noted than `planning_tables.py` takes."""

import planning_tables
import pytest
from simulated_studies import (
    crossing_coverages,
    noisy_crossings,
    welch_coverage,
)

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
    20: ((1.025, 0.014), (0.999, 0.014), (1.000, 0.023), (0.994, 0.040)),
    40: ((1.012, 0.007), (1.000, 0.007), (0.998, 0.017), (0.983, 0.032)),
    100: ((1.005, 0.003), (1.000, 0.003), (0.993, 0.013), (0.968, 0.026)),
}


@pytest.mark.parametrize(("runs", "cv"), TABLE_A)
def test_welch_coverage_and_half_widths_are_those_of_planning_table_a(runs: int, cv: float) -> None:
    covered, half_width = welch_coverage(runs, cv, COUNT)
    assert 100 * covered == pytest.approx(TABLE_A[runs, cv][0], abs=2)
    assert 100 * half_width == pytest.approx(TABLE_A[runs, cv][1], abs=0.5)


@pytest.mark.parametrize("evaluations", TABLE_C)
def test_midpoints_are_right_on_average_and_noise_rewards_luck(evaluations: int) -> None:
    found = [noisy_crossings(evaluations, noise, COUNT) for noise in (0.0, 0.2, 0.5)]
    cells = [found[0][0], *(midpoint for _, midpoint in found)]
    for cell, expected in zip(cells, TABLE_C[evaluations], strict=True):
        assert cell == pytest.approx(expected, abs=0.005)


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
    assert len(rows) == sum(2 + count for count in (6, 3, 3, 4, 6, 3))
    assert planning_tables.main(["--repetitions", "100"]) == 0
    assert capsys.readouterr().out == first
