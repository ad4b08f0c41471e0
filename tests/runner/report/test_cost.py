"""Accuracy against bytes: whole runs that sent something, and the median of an arm."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from daso_bench.runner.report.arms import Comparison, compare
from daso_bench.runner.report.cost import by_bytes, final_bytes
from daso_bench.runner.report.figures import plans
from daso_bench.runner.report.load import find_runs, load_run
from daso_bench.runner.report.style import drawing

Make = Callable[..., Path]


def compared(root: Path) -> Comparison:
    (comparison,) = compare(load_run(path, path.name) for path in find_runs(root))
    return comparison


def test_a_mark_for_each_run_and_one_for_the_median(make_run: Make, tmp_path: Path) -> None:
    for seed, (payload, accuracy) in enumerate([(4e6, 0.7), (6e6, 0.9), (5e6, 0.8)]):
        make_run(tmp_path, seed=seed, accuracies=(accuracy,), payload=(0, payload), target=None)
    make_run(tmp_path, "daso", accuracies=(0.6,), payload=(0, 1e6), target=None)
    with drawing("test"):
        axes = final_bytes(compared(tmp_path)).axes[0]
    runs, median, alone = axes.get_lines()
    assert sorted(np.asarray(runs.get_xdata())) == [4e6, 5e6, 6e6]
    assert (median.get_xdata(), median.get_ydata()) == ([5e6], [0.8])
    assert median.get_markersize() > runs.get_markersize()
    assert list(np.asarray(alone.get_xdata())) == [1e6]
    assert axes.get_xscale() == "linear"


def test_far_apart_is_logarithmic(make_run: Make, tmp_path: Path) -> None:
    make_run(tmp_path, payload=(0, 1e9))
    make_run(tmp_path, "daso", payload=(0, 1e6))
    with drawing("test"):
        assert final_bytes(compared(tmp_path)).axes[0].get_xscale() == "log"


@pytest.mark.parametrize(
    "more", [{"payload": (1e6, 0)}, {"status": "diverged"}, {"accuracies": (float("nan"),)}]
)
def test_what_has_no_place_is_left_out(make_run: Make, tmp_path: Path, more: dict[str, object]) -> None:
    make_run(tmp_path, **more)
    comparison = compared(tmp_path)
    assert by_bytes(comparison.runs[0]) == []
    assert "accuracy_bytes" not in [plan.name for plan in plans(comparison)]
