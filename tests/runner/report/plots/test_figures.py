"""What the figures show: arms told apart, no curve without legend."""

from itertools import combinations
from pathlib import Path

import pytest
from sharing import Make, compared

from daso_bench.runner.report.plots.curves import curves
from daso_bench.runner.report.plots.pictures import drawing
from daso_bench.runner.report.plots.style import COLOURS


def test_many_arms_have_their_legend_below_the_curves(make_run: Make, tmp_path: Path) -> None:
    for number in range(14):
        make_run(tmp_path, "daso", settings={"sync_every": number + 1})
    with drawing("test"):
        figure = curves(compared(tmp_path), "samples", "samples")
        figure.draw_without_rendering()
        (legend,), (axes,) = figure.legends, figure.axes
        assert len({text.get_text() for text in legend.get_texts()}) == 14
        assert legend.get_window_extent().y1 <= axes.get_window_extent().y0
        assert legend.get_window_extent().x1 <= figure.bbox.x1


def test_the_legend_names_what_has_no_curve(make_run: Make, tmp_path: Path) -> None:
    make_run(tmp_path, "ddp")
    make_run(tmp_path, "zero", accuracies=(), status="failed")
    with drawing("test"):
        (legend,) = curves(compared(tmp_path), "train_s", "time").legends
    assert [text.get_text() for text in legend.get_texts()] == [
        "ddp (1 run)",
        "zero (1 run, nothing to show)",
    ]


def test_the_axis_begins_after_a_quarter_of_the_evaluations(make_run: Make, tmp_path: Path) -> None:
    make_run(tmp_path, "ddp", 0, (0.1, 0.3, 0.6, 0.7, 0.75, 0.8, 0.82, 0.83))
    with drawing("test"):
        low, high = curves(compared(tmp_path), "samples", "samples").axes[0].get_ylim()
    assert low == pytest.approx(0.6)
    assert high > 0.83


def test_16_arms_have_colours_that_stand_out_from_light_and_dark_and_from_each_other() -> None:
    def linear(colour: str) -> list[float]:
        shares = [int(colour[place : place + 2], 16) / 255 for place in (1, 3, 5)]
        return [share / 12.92 if share <= 0.04045 else ((share + 0.055) / 1.055) ** 2.4 for share in shares]

    def luminance(colour: str) -> float:
        return sum(
            weight * value for weight, value in zip((0.2126, 0.7152, 0.0722), linear(colour), strict=True)
        )

    assert len(set(COLOURS)) == 16
    for colour in COLOURS:
        assert 1.05 / (luminance(colour) + 0.05) >= 3, "contrast with white"
        assert (luminance(colour) + 0.05) / (luminance("#14171c") + 0.05) >= 3, "contrast with the dark page"
    for one, other in combinations(COLOURS, 2):
        assert max(abs(a - b) for a, b in zip(linear(one), linear(other), strict=True)) > 0.08, (one, other)
