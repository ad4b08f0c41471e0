"""The share of runs that reached the target by a time, step by step."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from daso_bench.runner.report.arms import Comparison, compare
from daso_bench.runner.report.figures import plans
from daso_bench.runner.report.load import find_runs, load_run
from daso_bench.runner.report.reach import budget_s, half_s, reached_share, steps
from daso_bench.runner.report.style import drawing

Make = Callable[..., Path]
ROOT2 = 2**0.5  # a crossing between evaluations at t and 2t is scored at √2·t


def compared(root: Path) -> Comparison:
    (comparison,) = compare(load_run(path, path.name) for path in find_runs(root))
    return comparison


@pytest.fixture
def mixed(make_run: Make, tmp_path: Path) -> Comparison:
    """Two runs reach the target at √2·90 and √2·60 s, one never does, one diverges, one failed."""
    make_run(tmp_path, seed=0, train_s=90.0)
    make_run(tmp_path, seed=1, train_s=60.0)
    make_run(tmp_path, seed=2, accuracies=(0.5,) * 5, train_s=100.0)
    make_run(tmp_path, seed=3, accuracies=(0.5,), status="diverged")
    make_run(tmp_path, seed=4, accuracies=(0.5, 0.8), status="failed")
    return compared(tmp_path)


def test_each_run_is_a_step_and_those_that_missed_count(mixed: Comparison) -> None:
    (arm,) = mixed.arms
    found = [(0, 0), (ROOT2 * 60, 1 / 4), (ROOT2 * 90, 2 / 4), (500, 2 / 4)]
    assert steps(arm) == [pytest.approx(point) for point in found]
    assert half_s(arm) == pytest.approx(ROOT2 * 90)


def test_fewer_than_half_have_no_median_time(make_run: Make, tmp_path: Path) -> None:
    make_run(tmp_path, seed=0)
    for seed in (1, 2):
        make_run(tmp_path, seed=seed, accuracies=(0.5,))
    (arm,) = compared(tmp_path).arms
    assert half_s(arm) is None
    assert len(steps(arm)) == 3


def test_the_line_goes_up_at_the_time_and_not_before(mixed: Comparison) -> None:
    with drawing("test"):
        line, end = reached_share(mixed).axes[0].get_lines()
    assert line.get_drawstyle() == "steps-post"
    assert np.asarray(line.get_ydata()) == pytest.approx([0, 0.25, 0.5, 0.5])
    assert np.asarray(end.get_xdata()) == pytest.approx([500])


def test_a_budget_that_all_have_is_marked(make_run: Make, tmp_path: Path) -> None:
    make_run(tmp_path, seed=0, train={"max_seconds": 400.0})
    comparison = compared(tmp_path)
    assert budget_s(comparison) == 400
    with drawing("test"):
        axes = reached_share(comparison).axes[0]
    assert "budget" in [text.get_text() for text in axes.texts]
    make_run(tmp_path, seed=1, train={"max_seconds": 500.0})
    assert budget_s(compared(tmp_path)) is None


def test_without_a_target_there_is_no_such_figure(make_run: Make, tmp_path: Path) -> None:
    make_run(tmp_path, target=None)
    assert "reached" not in [plan.name for plan in plans(compared(tmp_path))]
