"""Curves are medians and bands; a page of many runs stays small."""

from itertools import product
from pathlib import Path

import numpy as np
import pytest
from matplotlib.collections import FillBetweenPolyCollection
from sharing import Make, compared

from daso_bench.runner.report import build
from daso_bench.runner.report.plots.curves import curves, quartiles
from daso_bench.runner.report.plots.pictures import drawing

NAN = float("nan")
LARGEST_PAGE_BYTES = 5e6  # of 1,000 runs
FIGURE_BYTES = 1e6  # of them, for figures


def line(*values: float) -> list[tuple[float, float]]:
    return [(100 * place, value) for place, value in enumerate(values)]


@pytest.mark.parametrize(
    ("runs", "expected"),
    [
        ([line(value) for value in (0.1, 0.2, 0.3, 0.4, 0.9)], [(0, 0.2, 0.3, 0.4)]),
        ([line(1, 1, 1, 1), line(1, 1), line(1, 1), line(1)], [(0, 1, 1, 1), (100, 1, 1, 1)]),
        ([line(0.5, NAN), line(0.5, 0.9)], [(0, 0.5, 0.5, 0.5), (100, 0.9, 0.9, 0.9)]),
        ([], []),
        ([line(NAN)], []),
    ],
    ids=["middle half", "less than half go on", "a NaN is no value", "no run", "NaN alone"],
)
def test_the_band_is_the_middle_half_and_the_line_the_median(
    runs: list[list[tuple[float, float]]], expected: list[tuple[float, ...]]
) -> None:
    assert quartiles(runs) == [pytest.approx(point) for point in expected]


def test_a_curve_is_the_median_with_its_band_and_a_mark_where_a_run_ended_early(
    make_run: Make, tmp_path: Path
) -> None:
    for seed in range(4):
        make_run(tmp_path, "ddp", seed, (0.5 + 0.1 * seed, 0.9), target=None)
    make_run(tmp_path, "daso", 0, (0.2,), target=None, status="diverged")
    with drawing("test"):
        axes = curves(compared(tmp_path), "samples", "samples").axes[0]
    bands = [band for band in axes.collections if isinstance(band, FillBetweenPolyCollection)]
    median, _, end = axes.get_lines()
    assert len(bands) == 2
    assert np.asarray(median.get_ydata()) == pytest.approx([0.65, 0.9])
    assert end.get_marker() == "x"


@pytest.mark.usefixtures("undrawn")
def test_the_page_of_many_runs_stays_small(make_run: Make, tmp_path: Path) -> None:
    """The size of a page of 1,000 runs follows from two pages that differ by a few."""
    runs = [make_run(tmp_path / "runs", "daso", seed) for seed in range(5)]
    page = build.report(tmp_path / "runs", tmp_path / "out").read_text()
    assert "Every run (5)" in page
    assert "Settings and commands of 5 runs" in page
    assert all(path.name in page for path in runs)
    assert page.count("train.global_batch_size=64") == 1, "in the script"
    for seed in range(5, 10):
        make_run(tmp_path / "runs", "daso", seed)
    larger = build.report(tmp_path / "runs", tmp_path / "out").read_text()
    run_bytes = (len(larger.encode()) - len(page.encode())) / 5
    assert len(page.encode()) + 995 * run_bytes + FIGURE_BYTES < LARGEST_PAGE_BYTES


@pytest.mark.usefixtures("undrawn")
def test_more_than_three_comparisons_begin_with_a_list_of_their_answers(
    make_run: Make, tmp_path: Path
) -> None:
    def with_sizes(*sizes: int) -> str:
        for size, seed in product(sizes, range(3)):
            place = {"size": f"{size} nodes"}
            make_run(tmp_path / "runs", "ddp", seed, train_s=90.0 + seed, place=place)
            make_run(tmp_path / "runs", "daso", seed, train_s=45.0 + seed, place=place)
        return build.report(tmp_path / "runs", tmp_path / "out").read_text()

    stacked, listed = with_sizes(1, 2, 3), with_sizes(4)
    assert (stacked.count('class="sentence"'), listed.count('class="sentence"')) == (3, 4)
    assert "<h1>" not in stacked
    assert (
        listed.index("<h1>4 comparisons</h1>") < listed.index('href="#answer-4"') < listed.index("<article")
    )
    assert len(list((tmp_path / "out").glob("paper_*.csv"))) == 4
