"""Arms under assumptions, from run directories written by hand: times, words, table, figure and page."""

from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
from sharing import Make, all_compared
from sharing import table as rows

from daso_bench.runner.report.build import report
from daso_bench.runner.report.sections.sensitivity import (
    SizeTable,
    ranking_words,
    size_tables,
)

FAR = "simulated: extrapolated to 256 ranks, step times were compared with measured ones on 16 ranks"
TIMES = {
    "": {"ddp": 40.0, "daso": 20.0, "lasgd": 30.0},
    "rings": {"ddp": 50.0, "daso": 40.0, "lasgd": 45.0},
    "fair links": {"ddp": 40.0, "daso": 20.0, "lasgd": 44.0},
}
BOTH = ("", "rings")


@pytest.fixture
def make_study(make_run: Make, tmp_path: Path) -> Callable[..., Path]:
    """Writes a run for each time, by assumption and arm; `more` goes to every run."""

    def make(times: Mapping[str, Mapping[str, float]] = TIMES, size: str = "", **more: object) -> Path:
        for assumption, arms in times.items():
            for arm, seconds in arms.items():
                place = {"arm": arm, "assumption": assumption, "size": size}
                settings = {
                    "accuracies": (0.5,),
                    "target": None,
                    "world": "simulated",
                    "labels": [FAR],
                } | more
                make_run(tmp_path / "results", arm.split()[0], train_s=seconds, place=place, **settings)
        return tmp_path / "results"

    return make


def only(root: Path) -> SizeTable:
    ((table,),) = size_tables(all_compared(root))
    return table


def test_the_table_is_relative_to_ddp_and_as_configured_comes_first(make_study: Make) -> None:
    table = only(make_study())
    assert table.assumptions == ["", "fair links", "rings"]
    assert list(table.arms) == ["ddp", "daso", "lasgd"]
    assert table.speeds("daso") == {"": 2.0, "fair links": 2.0, "rings": 1.25}
    assert table.measure == "training time"
    assert ranking_words(table.times).startswith("daso, then no order between lasgd and ddp: it turns")


def test_the_baseline_is_the_first_arm_of_ddp(make_study: Make) -> None:
    """Also where another arm comes first by name, and another arm of ddp has a longer name."""
    root = make_study({name: {"averaging": 1.0, "ddp by nodes": 2.0, "ddp": 3.0} for name in BOTH})
    assert only(root).baseline == "ddp"


def test_an_arm_that_lacks_a_run_a_seed_or_the_target_is_not_ranked(make_study: Make) -> None:
    """On the one seed in common ddp is faster than daso; over all runs of each it would be slower."""
    make_study({name: {"ddp": 400.0, "daso": 440.0, "lasgd": 300.0, "hsgd": 1.0} for name in BOTH})
    make_study({name: {"ddp": 1600.0, "lasgd": 300.0} for name in BOTH}, seed=1)
    root = make_study({name: {"hsgd": 1.0} for name in BOTH}, seed=1, status="diverged")
    table = only(root)
    assert list(table.times) == ["ddp", "lasgd"]
    assert table.seconds["ddp"][""] == pytest.approx(800.0), "the geometric mean over seeds"
    assert table.seconds["daso"][""] is table.seconds["hsgd"][""] is None


def test_without_a_run_as_configured_nothing_is_ranked(make_study: Make, tmp_path: Path) -> None:
    root = make_study({"rings": TIMES["rings"]})
    assert only(root).times == {}
    page = report(root, tmp_path / "out").read_text()
    assert "no ranking: no arm has a time under every assumption" in page
    assert "Not ranked are arms of which a run is missing" in page


def test_unequal_work_is_compared_per_sample(make_study: Make) -> None:
    make_study({name: {"ddp": 40.0, "daso": 20.0} for name in BOTH})
    table = only(make_study({name: {"lasgd": 15.0} for name in BOTH}, accuracies=(0.5, 0.6)))
    assert table.seconds["lasgd"][""] == pytest.approx(0.015)
    assert table.speeds("lasgd")[""] == pytest.approx(0.04 / 0.015)
    assert table.measure == "training time per sample"


def test_with_one_target_the_scored_crossing_is_compared(make_study: Make) -> None:
    make_study({"": {"ddp": 40.0, "daso": 20.0}}, target=0.6, accuracies=(0.5, 0.6))
    make_study({"rings": {"ddp": 40.0}}, target=0.6, accuracies=(0.5, 0.5, 0.6))
    table = only(make_study({"rings": {"daso": 20.0}}, target=0.6, accuracies=(0.5, 0.5)))
    assert table.measure == "time to target"
    assert table.seconds["ddp"] == pytest.approx({"": 40 * 2**0.5, "rings": 40 * 6**0.5})
    assert table.seconds["daso"]["rings"] is None


def test_worlds_and_sizes_are_never_mixed(make_study: Make) -> None:
    slow = {name: {arm: 10 * seconds for arm, seconds in arms.items()} for name, arms in TIMES.items()}
    make_study(size="16 nodes")
    make_study(slow, size="4 nodes")
    make_study({"": {"ddp": 7.0, "daso": 7.0}}, size="64 nodes")
    real, simulated = size_tables(all_compared(make_study(size="4 nodes", world="local")))
    assert [(table.comparison.world, table.comparison.size) for table in real] == [("local", "4 nodes")]
    assert [table.comparison.size for table in simulated] == ["4 nodes", "16 nodes"]
    assert [table.seconds["ddp"][""] for table in simulated] == [400.0, 40.0]


def test_the_page_shows_runs_under_assumptions_in_their_own_section_alone(
    make_study: Make, tmp_path: Path
) -> None:
    page = report(make_study(size="4 nodes"), tmp_path / "out").read_text()
    ordinary, _, section = page.partition("Does the ranking depend on assumptions?")
    assert "study.assumption=rings" not in ordinary
    assert "study.assumption=rings" in section
    assert f'<span class="chip">{FAR}</span>' in section
    runs = rows(tmp_path / "out" / "runs.csv")
    assert {(row["arm"], row["size"], row["assumption"]) for row in runs} == {
        (arm, "4 nodes", assumption) for assumption, arms in TIMES.items() for arm in arms
    }
    table = rows(tmp_path / "out" / "sensitivity.csv")
    assert {(row["assumption"], row["arm"]): float(row["relative"]) for row in table}["rings", "daso"] == 1.25
