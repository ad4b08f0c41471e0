"""What the figures show: arms told apart, no curve without legend."""

from pathlib import Path

import pytest
from sharing import Make, compared, there

from daso_bench.runner.report.plots.curves import ARMS_PER_PANEL, curves
from daso_bench.runner.report.plots.style import drawing, numbers


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


def test_the_axis_begins_after_a_quarter_of_the_evaluations(make_run: Make, tmp_path: Path) -> None:
    make_run(tmp_path, "ddp", 0, (0.1, 0.3, 0.6, 0.7, 0.75, 0.8, 0.82, 0.83))
    with drawing("test"):
        low, high = curves(compared(tmp_path), "samples", "samples").axes[0].get_ylim()
    assert low == pytest.approx(0.6)
    assert high > 0.83


def test_axis_labels_are_what_they_stand_at() -> None:
    format_tick = numbers()
    assert [format_tick(value) for value in (0, 0.1 + 0.2, 12.5, 20, 1e6, 12345.5)] == [
        *("0", "0.3", "12.5", "20", "1,000,000", "12,345.5")
    ]
