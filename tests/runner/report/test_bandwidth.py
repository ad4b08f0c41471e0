"""Time to target against the rate between nodes: lines, crossings by hand, figure and page."""

import math
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import pytest
from sharing import Make, agree, all_compared, edited, section_of, table

from daso_bench.runner.report.build import report
from daso_bench.runner.report.plots.pictures import drawing
from daso_bench.runner.report.sections.bandwidth import Bandwidth, BandwidthSection, crossings, draw

ROOT2 = math.sqrt(2)  # a crossing between evaluations at t and 2t is scored at √2·t
# Seconds between evaluations. ddp and daso cross at √10 Gbit/s.
TIMES = {1.0: {"ddp": 40.0, "daso": 20.0}, 10.0: {"ddp": 10.0, "daso": 20.0}}
MakeStudy = Callable[..., list[Bandwidth]]


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
def make_study(make_run: Make, tmp_path: Path) -> MakeStudy:
    """Adds a run for each time, by rate and arm, and analyses them all; `more` goes to every run, `nodes` to
    the cluster."""

    def make(
        times: Mapping[float, Mapping[str, float]] = TIMES, seed: int = 0, nodes: int = 2, **more: object
    ) -> list[Bandwidth]:
        for rate, arms in times.items():
            for arm, seconds in arms.items():
                given = {"place": {"size": f"{rate:g} Gbit/s"}, "world": "simulated"}
                given |= {"accuracies": (0.60, 0.76, 0.77, 0.78)} | more
                run = make_run(tmp_path / "results", arm, seed, train_s=seconds, **given)
                with edited(run) as config:
                    config["cluster"] |= {"nodes": nodes, "links": {"inter": {"rate_gbit": rate}}}
                agree(run)
        return section_of(BandwidthSection, all_compared(tmp_path / "results")).bandwidths

    return make


def test_a_line_has_geometric_means_where_all_runs_of_an_arm_reached_the_target(make_study: MakeStudy):
    make_study()
    make_study({1.0: {"lasgd": 1.0}}, accuracies=(0.1, 0.2))
    (study,) = make_study({1.0: {"ddp": 80.0}, 10.0: {"ddp": 10.0, "daso": 20.0}}, seed=1)
    assert list(study.comparisons) == [1, 10]
    assert list(study.lines) == ["ddp", "daso", "lasgd"]
    assert study.lines["ddp"] == pytest.approx({1: math.sqrt(40 * 80) * ROOT2, 10: 10 * ROOT2})
    (study,) = make_study({10.0: {"daso": 20.0}}, seed=2, accuracies=(0.1, 0.2))
    assert study.lines["daso"] == pytest.approx({1: 20 * ROOT2})
    assert study.lines["lasgd"] == {}


def test_lines_that_do_not_cross_are_named_too(make_study: MakeStudy):
    (study,) = make_study({1.0: {"ddp": 4.0, "daso": 2.0}, 10.0: {"ddp": 3.0, "daso": 2.0}})
    assert study.crossings_in_words == ["no two lines cross"]


@pytest.mark.parametrize(
    "change", [{"nodes": 4}, {"target": None}, None], ids=["nodes", "target", "one rate"]
)
def test_sizes_that_differ_in_more_than_the_rate_are_no_study_over_rates(
    make_study: MakeStudy, change: object
):
    studies = make_study({1.0: TIMES[1.0]})
    if isinstance(change, dict):
        studies = make_study({10.0: TIMES[10.0]}, **change)
    assert studies == []


@pytest.mark.usefixtures("undrawn")
def test_the_page_has_the_crossings_and_the_figure_the_lines(make_study: MakeStudy, tmp_path: Path):
    make_study()
    (study,) = make_study({rate: {"lasgd": 1.0} for rate in TIMES}, accuracies=(0.1, 0.2))
    with drawing("test"):
        figure = draw(study)
    (axes,) = figure.axes
    drawn = [np.asarray(line.get_xydata()) for line in axes.get_lines() if str(line.get_marker()) in "os^"]
    for points in (list(line.items()) for line in study.lines.values() if line):
        assert any(line.shape == (len(points), 2) and np.allclose(line, points) for line in drawn)
    assert (axes.get_xscale(), axes.get_yscale()) == ("log", "log")
    (legend,) = figure.legends
    assert "lasgd (nothing to show)" in [text.get_text() for text in legend.get_texts()]
    page = report(tmp_path / "results", tmp_path / "out").read_text()
    heading = page.index("Which link is fast enough")
    assert heading < page.index("daso is faster below 3.162 Gbit/s, ddp above") < page.index("Every run (")
    assert 'Data: <a href="bandwidth.csv">' in page
    points = table(tmp_path / "out" / "bandwidth.csv")
    assert [(row["arm"], row["rate_gbit"]) for row in points] == [
        (arm, rate) for arm in ("ddp", "daso", "lasgd") for rate in ("1.0", "10.0")
    ]
    assert float(points[0]["to_target_s"]) == pytest.approx(40 * ROOT2)
    (plot,) = section_of(BandwidthSection, list(study.comparisons.values())).plots()
    assert plot.corner == "simulated on CPU"
