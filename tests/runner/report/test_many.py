"""More runs than anybody reads one by one: medians and bands, and a page that stays small."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from many_runs import copies
from matplotlib.collections import FillBetweenPolyCollection
from sharing import compared

from daso_bench.runner.report import build
from daso_bench.runner.report.build import report
from daso_bench.runner.report.data import arms
from daso_bench.runner.report.data.arms import MANY_RUNS
from daso_bench.runner.report.data.load import Point, find_runs
from daso_bench.runner.report.plots.curves import curves, quartiles
from daso_bench.runner.report.plots.pictures import Picture
from daso_bench.runner.report.plots.style import drawing

Make = Callable[..., Path]
LIMIT = 5e6  # bytes of a page of 1,000 runs
FIGURES = 1e6  # of them, for figures


def line(*values: float) -> list[Point]:
    return [Point(100 * place, 100 * place, value) for place, value in enumerate(values)]


def test_the_band_is_the_middle_half_and_the_line_the_median() -> None:
    runs = [line(value) for value in (0.1, 0.2, 0.3, 0.4, 0.9)]
    assert quartiles(runs) == [(0, pytest.approx(0.2), pytest.approx(0.3), pytest.approx(0.4))]


def test_the_band_ends_where_less_than_half_of_the_runs_go_on() -> None:
    assert [place for place, *_ in quartiles([line(1, 1, 1, 1), line(1, 1), line(1, 1), line(1)])] == [0, 100]


def test_a_nan_is_no_value_of_a_band() -> None:
    assert quartiles([line(0.5, float("nan")), line(0.7, 0.9)])[1] == (100, 0.9, 0.9, 0.9)


def test_nothing_has_no_band() -> None:
    assert quartiles([]) == []
    assert quartiles([line(float("nan"))]) == []


def test_above_the_limit_runs_give_way_to_medians_and_bands(
    make_run: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(arms, "MANY_RUNS", 4)
    for seed in range(4):
        make_run(tmp_path, "ddp", seed, (0.5 + 0.1 * seed, 0.9), target=None)
    for many in (False, True):
        if many:
            make_run(tmp_path, "daso", 0, (0.2,), target=None, status="diverged")
        comparison = compared(tmp_path)
        assert comparison.many is many
        with drawing("test"):
            axes = curves(comparison, "samples", "samples").axes[0]
        bands = [one for one in axes.collections if isinstance(one, FillBetweenPolyCollection)]
        # All runs and the median; or two medians and the mark where one ended early.
        assert (len(axes.get_lines()), len(bands)) == ((3, 2) if many else (5, 0))
    median = axes.get_lines()[0]
    assert np.asarray(median.get_ydata()) == pytest.approx([0.65, 0.9])


def test_a_page_of_a_thousand_runs_would_be_small_enough(
    make_run: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By two pages that differ by a few runs; figures, whose size does not grow with runs, are left out."""
    monkeypatch.setattr(build, "picture", lambda plot, output: Picture(title=plot.title))
    for strategy in ("ddp", "daso", "lasgd"):
        path = make_run(tmp_path / "few", strategy, 0)
        # As many settings as real runs have.
        with open(path / "config.yaml", "a") as file:
            file.writelines(f"padding_{number}: [a value, of some, length]\n" for number in range(60))
    sizes = []
    for count in (MANY_RUNS + 2, MANY_RUNS + 12):
        root = tmp_path / str(count)
        assert len(list(copies(tmp_path / "few", root / "runs", count))) == count
        page = report(root / "runs", root / "out").read_text()
        assert f"The commands of all {count} runs, as a script" in page
        assert f"Every run ({count})" in page
        for path in find_runs(root / "runs"):
            assert path.name in page
        sizes.append(len(page.encode()))
    each = (sizes[1] - sizes[0]) / 10
    assert sizes[0] + 900 * each + FIGURES < LIMIT
