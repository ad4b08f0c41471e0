"""How many runs reached the target and when, and what is said of those that did not."""

from collections.abc import Callable
from pathlib import Path

import pytest
from sharing import compared, table, tables_of

from daso_bench.runner.report.build import report
from daso_bench.runner.report.claims.speedups import speedups_of
from daso_bench.runner.report.data.arms import Comparison
from daso_bench.runner.report.sections.headline import HeadlineSection, headline
from daso_bench.runner.report.target import budget_s, horizon_s

Make = Callable[..., Path]
ROOT2 = 2**0.5  # a crossing between evaluations at t and 2t is scored at √2·t


@pytest.fixture
def mixed(make_run: Make, tmp_path: Path) -> Comparison:
    """Two runs reach the target at √2·90 and √2·60 s, one never does, one diverges, one failed."""
    make_run(tmp_path, seed=0, train_s=90.0)
    make_run(tmp_path, seed=1, train_s=60.0)
    make_run(tmp_path, seed=2, accuracies=(0.5,) * 5, train_s=100.0)
    make_run(tmp_path, seed=3, accuracies=(0.5,), status="diverged")
    make_run(tmp_path, seed=4, accuracies=(0.5, 0.8), status="failed")
    return compared(tmp_path)


def crossing_at(make_run: Make, root: Path, seed: int, seconds: float, **more: object) -> None:
    """A run whose crossing is scored at `seconds`."""
    make_run(root, seed=seed, accuracies=(0.5, 0.8, 0.8), train_s=seconds / ROOT2, **more)


def test_the_budget_is_twice_the_baselines_median(mixed: Comparison) -> None:
    """T_train of the counted runs: 360, 240, 500 and 90 s."""
    assert budget_s(mixed) == 600


def test_the_table_and_the_ratios_have_one_budget(make_run: Make, tmp_path: Path) -> None:
    for strategy in ("ddp", "daso"):
        for seed in range(3):
            make_run(tmp_path, strategy, seed, train={"max_seconds": 400.0 + 100 * (strategy == "daso")})
    comparison = compared(tmp_path)
    found = speedups_of(comparison)
    assert found is not None
    assert found.budget_s == budget_s(comparison) == 500


def test_without_a_baseline_there_is_no_budget(make_run: Make, tmp_path: Path) -> None:
    make_run(tmp_path, "daso", accuracies=(0.5, 0.5), train_s=40)
    comparison = compared(tmp_path)
    assert (budget_s(comparison), horizon_s(comparison)) == (None, 80)


def test_the_numbers_of_the_rules_for_a_run_that_missed_the_target(make_run: Make, tmp_path: Path) -> None:
    """Invariant 7: 100, 110, 120, 130 and a failure at 200: 4/5, [0.376, 0.964], median 120, ERT 165."""
    for seed, seconds in enumerate((100, 110, 120, 130)):
        crossing_at(make_run, tmp_path, seed, seconds, train={"max_seconds": 200.0})
    make_run(tmp_path, seed=4, accuracies=(0.5, 0.5), train_s=100, train={"max_seconds": 200.0})
    comparison = compared(tmp_path)
    (row,) = tables_of(HeadlineSection, [comparison])["reached"]
    assert (row["reached"], row["runs"], row["rate_only"]) == (4, 5, False)
    assert (row["reached_low"], row["reached_high"]) == pytest.approx((0.376, 0.964), abs=1e-3)
    assert row["median_s"] == pytest.approx(120)
    (line,) = headline(comparison)
    assert line.reached == "4 of 5 [0.38, 0.96]"
    assert line.median == "120.0 s"
    assert line.to_target == "no mean, not all reached it"


def test_fewer_than_half_give_a_rate_and_no_time(make_run: Make, tmp_path: Path) -> None:
    for seed in (0, 1):
        crossing_at(make_run, tmp_path, seed, 100)
    for seed in (2, 3, 4):
        make_run(tmp_path, seed=seed, accuracies=(0.5,))
    comparison = compared(tmp_path)
    (row,) = tables_of(HeadlineSection, [comparison])["reached"]
    assert row["rate_only"] is True
    assert row["median_s"] is None
    (line,) = headline(comparison)
    assert (line.to_target, line.median) == ("rate only",) * 2


def test_half_of_the_runs_are_enough_for_a_median(mixed: Comparison) -> None:
    (row,) = tables_of(HeadlineSection, [mixed])["reached"]
    assert row["median_s"] == pytest.approx(ROOT2 * 90)
    (line,) = headline(mixed)
    assert (line.reached, line.median) == ("2 of 4 [0.15, 0.85]", "127.3 s")


def test_a_crossing_at_no_time_at_all_costs_no_report(make_run: Make, tmp_path: Path) -> None:
    make_run(tmp_path, accuracies=(0.8, 0.8), train_s=0.0, status="timed_out")
    (row,) = tables_of(HeadlineSection, [compared(tmp_path)])["reached"]
    assert row["reached"] == 1


def test_the_page_and_the_table_say_who_reached_it_and_when(make_run: Make, tmp_path: Path) -> None:
    for seed in range(3):
        make_run(tmp_path / "in", seed=seed)
    page = report(tmp_path / "in", tmp_path / "out").read_text()
    assert "3 of 3 [0.44, 1.00]" in page
    assert "<small>median 127.3 s</small>" in page
    (row,) = table(tmp_path / "out" / "reached.csv")
    assert float(row["median_s"]) == pytest.approx(ROOT2 * 90)


def test_without_a_target_there_is_no_median_and_no_such_table(make_run: Make, tmp_path: Path) -> None:
    make_run(tmp_path / "in", target=None)
    page = report(tmp_path / "in", tmp_path / "out").read_text()
    assert "<small>median" not in page
    assert not (tmp_path / "out" / "reached.csv").exists()
