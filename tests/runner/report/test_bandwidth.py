"""Time to target against the rate between nodes: lines, crossings by hand, figure and page."""

import math
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import pytest
from sharing import Make, agree, all_compared, edited, section_of
from sharing import table as rows

from daso_bench.runner.report.build import report
from daso_bench.runner.report.plots.pictures import drawing
from daso_bench.runner.report.sections.bandwidth import (
    Bandwidth,
    BandwidthSection,
    bandwidths,
    crossings,
    draw,
)

ROOT2 = math.sqrt(2)  # a crossing between evaluations at t and 2t is scored at √2·t
# Seconds between evaluations. ddp and daso cross at √10 Gbit/s.
TIMES = {1.0: {"ddp": 40.0, "daso": 20.0}, 10.0: {"ddp": 10.0, "daso": 20.0}}


@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [
        # From 10 to 1 and from 5 to 2: half way from 1 to 100 both are at √10.
        ({1: 10, 100: 1}, {1: 5, 100: 2}, [(10, "second")]),
        # ln(second/first) goes from ln 2 to -ln 8: a quarter of the way from 1 to 16, which is 2.
        ({1: 4, 16: 8}, {1: 8, 16: 1}, [(2, "first")]),
        # Only the rates on both sides of a crossing count.
        (
            {0.1: 100, 1: 4, 16: 8, 100: 8},
            {0.1: 900, 1: 8, 16: 1, 100: 0.1},
            [(2, "first")],
        ),
        # Lines that meet at a rate that was run cross there; lines that only touch do not cross.
        ({1: 1, 10: 3, 100: 8}, {1: 2, 10: 3, 100: 4}, [(10, "first")]),
        ({1: 1, 10: 3, 100: 4}, {1: 2, 10: 3, 100: 8}, []),
        # Less than a hundredth apart is equal.
        ({1: 1, 10: 1, 100: 1}, {1: 1.005, 10: 0.995, 100: 1.005}, []),
        ({1: 1, 10: 1}, {1: 1.02, 10: 0.995}, []),
        # Small differences between clear ones make one crossing, not three: the first.
        (
            dict.fromkeys((1, 10, 100, 1000), 1),
            {1: 2, 10: 0.999, 100: 1.001, 1000: 0.5},
            [(10 ** (math.log(2) / math.log(2 / 0.999)), "first")],
        ),
        # Lines may cross twice.
        (
            {1: 1, 10: 4, 100: 1},
            {1: 2, 10: 2, 100: 2},
            [(10**0.5, "first"), (10**1.5, "second")],
        ),
        # No line leads over a rate at which an arm did not reach the target.
        ({1: 1, 10: 1, 100: 4}, {1: 2, 100: 2}, []),
    ],
)
def test_where_two_lines_cross_on_logarithmic_axes(
    first: Mapping[float, float], second: Mapping[float, float], expected: list[tuple[float, str]]
):
    """At which rate, and which of them is faster below it."""
    made = crossings(first, second, sorted(first.keys() | second.keys()))
    assert [rate for rate, _ in made] == pytest.approx([rate for rate, _ in expected])
    assert [first_below for _, first_below in made] == [below == "first" for _, below in expected]


@pytest.fixture
def make_study(make_run: Make, tmp_path: Path) -> Callable[..., Path]:
    """Writes a run for each time, by rate and arm; `more` goes to every run, `cluster` to those of a rate."""

    def make(
        times: Mapping[float, Mapping[str, float]] = TIMES, seed: int = 0, nodes: int = 2, **more: object
    ) -> Path:
        for rate, arms in times.items():
            for arm, seconds in arms.items():
                given = {"place": {"size": f"{rate:g} Gbit/s"}, "world": "simulated"}
                given |= {"accuracies": (0.60, 0.76, 0.77, 0.78)} | more
                run = make_run(tmp_path / "results", arm, seed, train_s=seconds, **given)
                with edited(run) as config:
                    config["cluster"] |= {"nodes": nodes, "links": {"inter": {"rate_gbit": rate}}}
                agree(run)
        return tmp_path / "results"

    return make


def analysed(root: Path) -> list[Bandwidth]:
    return bandwidths(all_compared(root))


def test_a_study_over_rates_has_a_line_for_each_arm(make_study: Make):
    """Geometric means over seeds."""
    make_study()
    (study,) = analysed(make_study({1.0: {"ddp": 80.0, "daso": 20.0}, 10.0: TIMES[10.0]}, seed=1))
    assert list(study.comparisons) == [1, 10]
    assert list(study.lines) == ["ddp", "daso"]
    assert study.lines["ddp"] == pytest.approx({1: math.sqrt(40 * 80) * ROOT2, 10: 10 * ROOT2})
    assert study.lines["daso"] == pytest.approx({1: 20 * ROOT2, 10: 20 * ROOT2})


def test_an_arm_that_missed_the_target_once_has_no_point_there(make_study: Make):
    make_study()
    (study,) = analysed(make_study({1.0: {"daso": 20.0}}, seed=1, accuracies=(0.1, 0.2)))
    assert list(study.lines["daso"]) == [10]
    assert study.sentences == ["daso: not all runs reached the target at every rate"]


def test_lines_that_do_not_cross_are_named_too(make_study: Make):
    (study,) = analysed(make_study({1.0: {"ddp": 4.0, "daso": 2.0}, 10.0: {"ddp": 3.0, "daso": 2.0}}))
    assert study.sentences == ["no two lines cross"]


@pytest.mark.parametrize(
    "change", [{"nodes": 4}, {"target": None}, None], ids=["nodes", "target", "one rate"]
)
def test_sizes_that_differ_in_more_than_the_rate_are_no_study_over_rates(make_study: Make, change: object):
    root = make_study({1.0: TIMES[1.0]})
    if isinstance(change, dict):
        make_study({10.0: TIMES[10.0]}, **change)
    assert analysed(root) == []


def test_the_figure_shows_the_lines(make_study: Make):
    make_study()
    root = make_study({rate: {"lasgd": 1.0} for rate in TIMES}, accuracies=(0.1, 0.2))
    (study,) = analysed(root)
    with drawing("test"):
        figure = draw(study)
    (axes,) = figure.axes
    drawn = [np.asarray(line.get_xydata()) for line in axes.get_lines() if str(line.get_marker()) in "os^"]
    for points in (list(line.items()) for line in study.lines.values() if line):
        assert any(line.shape == (len(points), 2) and np.allclose(line, points) for line in drawn)
    assert (axes.get_xscale(), axes.get_yscale()) == ("log", "log")
    (legend,) = figure.legends
    assert "lasgd (nothing to show)" in [text.get_text() for text in legend.get_texts()]
    assert study.sentences == [
        "daso is faster below 3.162 Gbit/s, ddp above",
        "lasgd: not all runs reached the target at every rate",
    ]


@pytest.mark.usefixtures("undrawn")
def test_the_page_begins_with_the_crossings_and_their_figure(make_study: Make, tmp_path: Path):
    page = report(make_study(), tmp_path / "out").read_text()
    heading = page.index("Which link is fast enough: small_cnn on digits")
    assert heading < page.index("daso is faster below 3.162 Gbit/s") < page.index("Every run (")
    assert 'Data: <a href="bandwidth.csv">' in page
    points = rows(tmp_path / "out" / "bandwidth.csv")
    assert [(row["arm"], row["rate_gbit"]) for row in points] == [
        *(("ddp", "1.0"), ("ddp", "10.0"), ("daso", "1.0"), ("daso", "10.0"))
    ]
    assert float(points[0]["to_target_s"]) == pytest.approx(40 * ROOT2)
    (figure,) = section_of(BandwidthSection, all_compared(tmp_path / "results")).plots()
    assert figure.corner == "simulated"
