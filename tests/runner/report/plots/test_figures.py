"""What the figures show: arms told apart, no curve without legend."""

from pathlib import Path

import numpy as np
import pytest
from matplotlib.axes import Axes
from sharing import Make, compared, there

from daso_bench.runner.report.plots.curves import ARMS_PER_PANEL, curves
from daso_bench.runner.report.plots.strip_plot import target_strip
from daso_bench.runner.report.plots.style import drawing, numbers


def markers(axes: Axes) -> list[tuple[str, float]]:
    """Marker and place of every single mark."""
    places = [
        (str(line.get_marker()), np.asarray(line.get_xdata(), dtype=float)) for line in axes.get_lines()
    ]
    return [(marker, float(place[0])) for marker, place in places if len(place) == 1]


def test_many_arms_are_split_into_panels_with_legends_outside(make_run: Make, tmp_path: Path) -> None:
    for number in range(14):
        make_run(tmp_path, "daso", settings={"sync_every": number + 1})
    with drawing("test"):
        figure = curves(compared(tmp_path), "samples", "samples")
        figure.draw_without_rendering()
        labels = []
        for axes in figure.axes:
            legend = there(axes.get_legend())
            labels += [text.get_text() for text in legend.get_texts()]
            assert legend.get_window_extent().y1 <= axes.get_window_extent().y0
            assert legend.get_window_extent().x1 <= figure.bbox.x1
    assert len(figure.axes) == 14 // ARMS_PER_PANEL
    assert len(set(labels)) == 14


def test_legend_keeps_odd_names_and_names_what_has_no_curve(make_run: Make, tmp_path: Path) -> None:
    for strategy in ("_x", "$y$"):
        make_run(tmp_path, "ddp", settings={"name": strategy})
    make_run(tmp_path, "zero", accuracies=(), status="failed")
    with drawing("test"):
        legend = there(curves(compared(tmp_path), "train_s", "time").axes[0].get_legend())
    assert sorted(text.get_text().lstrip("\N{ZERO WIDTH SPACE}") for text in legend.get_texts()) == [
        *("$y$ (1 run)", "_x (1 run)", "zero (1 run, nothing to show)")
    ]


@pytest.mark.parametrize(
    ("lengths", "drawn"), [((3,), 1), ((3, 3, 3), 4), ((2, 3), 2)], ids=["one", "median", "unequal"]
)
def test_every_run_has_its_curve_and_equal_ones_a_bold_median(
    make_run: Make, tmp_path: Path, lengths: tuple[int, ...], drawn: int
) -> None:
    for seed, length in enumerate(lengths):
        make_run(tmp_path, "ddp", seed, (0.1 * seed, 0.5, 0.6)[:length], target=None)
    with drawing("test"):
        lines = curves(compared(tmp_path), "samples", "samples").axes[0].get_lines()
    assert len(lines) == drawn
    if drawn == 4:
        assert np.asarray(lines[-1].get_ydata()) == pytest.approx([0.1, 0.5, 0.6])
        assert lines[-1].get_linewidth() > lines[0].get_linewidth()


def test_a_run_that_misses_the_target_stands_right_of_all_others(make_run: Make, tmp_path: Path) -> None:
    make_run(tmp_path, "ddp", 0)
    make_run(tmp_path, "ddp", 1, (0.1, 0.2))
    with drawing("test"):
        axes = target_strip(compared(tmp_path)).axes[0]
    (hit, miss) = markers(axes)
    assert hit == ("o", pytest.approx(220.45, abs=0.01))
    assert miss[0] == "x"
    assert miss[1] > 270
    assert "not reached" in [text.get_text() for text in axes.texts]


def test_axis_labels_are_what_they_stand_at() -> None:
    format_tick = numbers()
    assert [format_tick(value) for value in (0, 0.1 + 0.2, 12.5, 20, 1e6, 12345.5)] == [
        *("0", "0.3", "12.5", "20", "1,000,000", "12,345.5")
    ]
