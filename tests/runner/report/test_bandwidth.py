"""Time to target against the rate between nodes: lines, crossings by hand, the floor, figure and page."""

import math
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import pytest
import yaml
from sharing import table as rows

from daso_bench.runner.report.build import report
from daso_bench.runner.report.data.arms import compare
from daso_bench.runner.report.data.load import load_runs
from daso_bench.runner.report.plots.style import drawing
from daso_bench.runner.report.sections.bandwidth import Bandwidth, alternative, bandwidths, crossings, draw

Make = Callable[..., Path]
ROOT2 = math.sqrt(2)  # a crossing between evaluations at t and 2t is scored at √2·t
# Seconds between evaluations. ddp and daso cross at √10 Gbit/s, where both take 20·√2·t.
TIMES = {1.0: {"ddp": 40.0, "daso": 20.0}, 10.0: {"ddp": 10.0, "daso": 20.0}}


@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [
        # From 10 to 1 and from 5 to 2: half way from 1 to 100 both are at √10.
        ({1: 10, 100: 1}, {1: 5, 100: 2}, [("second", "first", 10, math.sqrt(10))]),
        # ln(second/first) goes from ln 2 to -ln 8: a quarter of the way from 1 to 16, which is 2.
        ({1: 4, 16: 8}, {1: 8, 16: 1}, [("first", "second", 2, 4 * 2**0.25)]),
        # Only the rates on both sides of a crossing count.
        (
            {0.1: 100, 1: 4, 16: 8, 100: 8},
            {0.1: 900, 1: 8, 16: 1, 100: 0.1},
            [("first", "second", 2, 4 * 2**0.25)],
        ),
        # Lines that meet at a rate that was run cross there; lines that only touch do not cross.
        ({1: 1, 10: 3, 100: 8}, {1: 2, 10: 3, 100: 4}, [("first", "second", 10, 3)]),
        ({1: 1, 10: 3, 100: 4}, {1: 2, 10: 3, 100: 8}, []),
        # Less than a hundredth apart is equal.
        ({1: 1, 10: 1, 100: 1}, {1: 1.005, 10: 0.995, 100: 1.005}, []),
        ({1: 1, 10: 1}, {1: 1.02, 10: 0.995}, []),
        # Lines may cross twice.
        (
            {1: 1, 10: 4, 100: 1},
            {1: 2, 10: 2, 100: 2},
            [("first", "second", 10**0.5, 2), ("second", "first", 10**1.5, 2)],
        ),
        # No line leads over a rate at which an arm did not reach the target.
        ({1: 1, 10: 1, 100: 4}, {1: 2, 100: 2}, []),
    ],
)
def test_where_two_lines_cross_on_logarithmic_axes(
    first: Mapping[float, float], second: Mapping[float, float], expected: list[tuple[str, str, float, float]]
):
    rates = sorted(first.keys() | second.keys())
    found = crossings("first", "second", {"first": first, "second": second}, rates)
    assert [(crossing.below, crossing.above) for crossing in found] == [names[:2] for names in expected]
    assert [(crossing.rate_gbit, crossing.seconds) for crossing in found] == [
        pytest.approx(numbers[2:]) for numbers in expected
    ]


def test_small_differences_between_clear_ones_make_one_crossing_not_three():
    lines = {
        "first": dict.fromkeys((1, 10, 100, 1000), 1),
        "second": {1: 2, 10: 0.999, 100: 1.001, 1000: 0.5},
    }
    (crossing,) = crossings("first", "second", lines, [1, 10, 100, 1000])
    assert crossing.below == "first"
    assert 9 < crossing.rate_gbit < 10, "the first of them"


@pytest.fixture
def make_study(make_run: Make, tmp_path: Path) -> Callable[..., Path]:
    """Writes a run for each time, by rate and arm; `more` goes to every run, `cluster` to those of a rate."""

    def make(
        times: Mapping[float, Mapping[str, float]] = TIMES, seed: int = 0, nodes: int = 2, **more: object
    ) -> Path:
        for rate, arms in times.items():
            for arm, seconds in arms.items():
                given = {"place": {"size": f"{rate:g} Gbit/s"}, "world": "simulated"} | more
                run = make_run(tmp_path / "results", arm, seed, train_s=seconds, **given)
                config = yaml.safe_load((run / "config.yaml").read_text())
                config["cluster"] |= {"nodes": nodes, "links": {"inter": {"rate_gbit": rate}}}
                (run / "config.yaml").write_text(yaml.safe_dump(config))
        return tmp_path / "results"

    return make


def analysed(root: Path) -> list[Bandwidth]:
    return bandwidths(compare(load_runs(root, "test")))


def test_a_study_over_rates_has_a_line_for_each_arm_and_the_floor_of_the_baseline(make_study: Make):
    (one,) = analysed(make_study())
    assert one.rates == [1, 10]
    assert list(one.arms) == ["ddp", "daso"]
    assert one.lines["ddp"] == pytest.approx({1: 40 * ROOT2, 10: 10 * ROOT2})
    assert one.lines["daso"] == pytest.approx({1: 20 * ROOT2, 10: 20 * ROOT2})
    # Exposed transfers are a fifth of a run's training time, waiting is a tenth.
    assert one.floor == pytest.approx({1: 0.7 * 40 * ROOT2, 10: 0.7 * 10 * ROOT2})
    (crossing,) = one.crossings
    assert (crossing.rate_gbit, crossing.seconds) == pytest.approx((math.sqrt(10), 20 * ROOT2))
    assert one.sentences == ["daso is faster below 3.162 Gbit/s, ddp above (28.28 s there)"]


def test_a_point_is_the_geometric_mean_over_seeds(make_study: Make):
    make_study()
    (one,) = analysed(make_study({rate: dict.fromkeys(arms, 80.0) for rate, arms in TIMES.items()}, seed=1))
    assert one.lines["ddp"][1] == pytest.approx(math.sqrt(40 * 80) * ROOT2)
    assert one.runs["ddp", 1] == (2, 2)


def test_an_arm_that_missed_the_target_once_has_no_point_there(make_study: Make):
    make_study()
    (one,) = analysed(make_study({1.0: {"daso": 20.0}}, seed=1, accuracies=(0.1, 0.2)))
    assert list(one.lines["daso"]) == [10]
    assert one.runs["daso", 1] == (2, 1)
    assert one.crossings == []
    assert one.sentences == ["daso: not all runs reached the target at every rate"]


def test_lines_that_do_not_cross_are_told_too(make_study: Make, tmp_path: Path):
    root = make_study({1.0: {"ddp": 4.0, "daso": 2.0}, 10.0: {"ddp": 3.0, "daso": 2.0}})
    (one,) = analysed(root)
    assert one.sentences == ["no two lines cross"]
    assert "crossings.csv" not in report(root, tmp_path / "out").read_text()
    assert not (tmp_path / "out" / "crossings.csv").exists()


def test_sizes_that_differ_in_more_than_the_rate_are_no_study_over_rates(make_study: Make):
    make_study({1.0: TIMES[1.0]})
    assert analysed(make_study({10.0: TIMES[10.0]}, nodes=4)) == []


def test_runs_without_a_target_or_at_one_rate_have_no_lines(make_study: Make, tmp_path: Path):
    assert analysed(make_study({1.0: TIMES[1.0]})) == []
    assert analysed(make_study({10.0: TIMES[10.0]}, target=None)) == []


def test_the_figure_shows_lines_floor_and_crossings(make_study: Make):
    (one,) = analysed(make_study())
    with drawing("test"):
        (axes,) = draw(one).axes
        drawn = [np.asarray(line.get_xydata()).tolist() for line in axes.get_lines()]
    lines = [*one.lines.values(), one.floor, {math.sqrt(10): 20 * ROOT2}]
    assert len(drawn) == len(lines)
    for shown, line in zip(drawn, lines, strict=True):
        assert [place for point in shown for place in point] == pytest.approx(
            [place for point in line.items() for place in point]
        )
    assert (axes.get_xscale(), axes.get_yscale()) == ("log", "log")
    assert alternative(one) == (
        "Time to target against the rate between nodes (simulated). ddp: 56.57 s at 1 Gbit/s, 14.14 s at"
        " 10 Gbit/s; daso: 28.28 s at 1 Gbit/s, 28.28 s at 10 Gbit/s; ddp, computing alone: 39.60 s at"
        " 1 Gbit/s, 9.899 s at 10 Gbit/s; daso is faster below 3.162 Gbit/s, ddp above (28.28 s there)."
    )


def test_an_arm_without_a_point_and_a_study_without_parts_are_drawn(make_study: Make):
    make_study({rate: {"ddp": arms["ddp"]} for rate, arms in TIMES.items()})
    root = make_study({rate: {"daso": 1.0} for rate in TIMES}, accuracies=(0.1, 0.2))
    for path in root.rglob("metrics.jsonl"):
        path.write_text(
            "\n".join(row for row in path.read_text().splitlines() if "parts_s" not in row) + "\n"
        )
    (one,) = analysed(root)
    assert one.floor == {}
    with drawing("test"):
        figure = draw(one)
    labels = [text.get_text() for legend in figure.legends for text in legend.get_texts()]
    assert labels == ["ddp", "daso (target not reached)"]


def test_the_page_begins_with_the_crossings_and_their_figure(make_study: Make, tmp_path: Path):
    page = report(make_study(), tmp_path / "out").read_text()
    heading = page.index("Which link is fast enough: small_cnn on digits")
    assert heading < page.index("daso is faster below 3.162 Gbit/s") < page.index("Every run is shown")
    assert 'Data: <a href="bandwidth.csv">' in page
    points = rows(tmp_path / "out" / "bandwidth.csv")
    assert [(row["arm"], row["rate_gbit"], row["reached"]) for row in points] == [
        ("ddp", "1.0", "1"),
        ("ddp", "10.0", "1"),
        ("daso", "1.0", "1"),
        ("daso", "10.0", "1"),
    ]
    assert float(points[0]["to_target_s"]) == pytest.approx(40 * ROOT2)
    assert float(points[0]["floor_s"]) == pytest.approx(28 * ROOT2)
    (crossing,) = rows(tmp_path / "out" / "crossings.csv")
    assert (crossing["faster_below"], crossing["faster_above"]) == ("daso", "ddp")
    assert "<!-- simulated -->" in (tmp_path / "out" / "bandwidth.svg").read_text()
