"""The budget after which a run that has not reached its target is a failure; and the table of the arms."""

from pathlib import Path

import pytest
from sharing import Make, compared, there

from daso_bench.runner.report.claims.speedups import speedups_of
from daso_bench.runner.report.data.arms import Comparison
from daso_bench.runner.report.sections.details import arm_line
from daso_bench.runner.report.target import budget_s, way


@pytest.fixture
def mixed(make_run: Make, tmp_path: Path) -> Comparison:
    """Two runs reach the target at √6·90 and √6·60 s, one never does, one diverges, one failed."""
    make_run(tmp_path, seed=0, train_s=90.0)
    make_run(tmp_path, seed=1, train_s=60.0)
    make_run(tmp_path, seed=2, accuracies=(0.5,) * 5, train_s=100.0)
    make_run(tmp_path, seed=3, accuracies=(0.5,), status="diverged")
    make_run(tmp_path, seed=4, accuracies=(0.5, 0.8), status="failed")
    return compared(tmp_path)


def test_the_budget_is_twice_the_baselines_median(mixed: Comparison) -> None:
    """T_train of the counted runs: 360, 240, 500 and 90 s."""
    assert budget_s(mixed) == 600


def test_the_table_of_the_arms_counts_who_reached_the_target(mixed: Comparison) -> None:
    line = arm_line(mixed, mixed.arms[0], budget_s(mixed))
    assert (line["runs"], line["reached"]) == ("4 runs (+ 1 not counted)", "2 of 4 [0.15, 0.85]")
    assert line["to_target"] == "median 220.5 s"
    assert arm_line(mixed, mixed.arms[0], None)["to_target"] == "–"


def test_an_arm_of_which_few_reached_the_target_has_no_time(make_run: Make, tmp_path: Path) -> None:
    make_run(tmp_path, seed=0)
    for seed in (1, 2):
        make_run(tmp_path, seed=seed, accuracies=(0.5,) * 5)
    comparison = compared(tmp_path)
    assert arm_line(comparison, comparison.arms[0], budget_s(comparison))["to_target"] == "–"


def test_the_ratios_have_the_same_budget(make_run: Make, tmp_path: Path) -> None:
    for strategy in ("ddp", "daso"):
        for seed in range(3):
            make_run(tmp_path, strategy, seed, train={"max_seconds": 400.0 + 100 * (strategy == "daso")})
    comparison = compared(tmp_path)
    speedups = there(speedups_of(comparison))
    assert speedups.budget_s == budget_s(comparison) == 500


def test_without_a_baseline_there_is_no_budget(make_run: Make, tmp_path: Path) -> None:
    make_run(tmp_path, "daso", accuracies=(0.5, 0.5), train_s=40)
    assert budget_s(compared(tmp_path)) is None


def test_a_crossing_at_no_time_at_all_has_a_logarithm(make_run: Make, tmp_path: Path) -> None:
    make_run(tmp_path, accuracies=(0.8, 0.8), train_s=0.0, status="timed_out")
    assert way(compared(tmp_path).runs, 100.0).seconds[0] > 0
