"""Arms under assumptions, from run directories written by hand: times, table and page."""

from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
from sharing import Make, all_compared, section_of, table

from daso_bench.runner.report.build import report
from daso_bench.runner.report.data.arms import Comparison
from daso_bench.runner.report.section import Rows
from daso_bench.runner.report.sections.sensitivity import SensitivitySection, ranges, rows_of

FAR = "simulated: extrapolated to 256 ranks, step times were compared with measured ones on 16 ranks"
TIMES = {
    "": {"ddp": 40.0, "daso": 20.0, "lasgd": 30.0},
    "rings": {"ddp": 50.0, "daso": 40.0, "lasgd": 45.0},
    "fair links": {"ddp": 40.0, "daso": 20.0, "lasgd": 44.0},
}
BOTH = ("", "rings")
MakeStudy = Callable[..., list[Comparison]]


@pytest.fixture
def make_study(make_run: Make, tmp_path: Path) -> MakeStudy:
    """Adds a run of 1,000 samples for each time, by assumption and arm; gives the first size's comparisons.

    `more` goes to every run.
    """

    def make(
        times: Mapping[str, Mapping[str, float]] = TIMES, size: str = "", **more: object
    ) -> list[Comparison]:
        settings = {"accuracies": (0.5,), "target": None, "world": "simulated", "labels": [FAR]} | more
        for assumption, arms in times.items():
            for arm, seconds in arms.items():
                place = {"arm": arm, "assumption": assumption, "size": size}
                make_run(tmp_path / "results", arm.split()[0], train_s=seconds, place=place, **settings)
        return next(iter(section_of(SensitivitySection, all_compared(tmp_path / "results")).studies), [])

    return make


def of_arm(rows: Rows, arm: str, column: str) -> dict[str, float | None]:
    """A column of the rows of an arm, by assumption."""
    return {row["assumption"]: row[column] for row in rows if row["arm"] == arm}


def test_the_rows_are_relative_to_ddp_and_the_table_has_the_range_of_each_arm(make_study: MakeStudy) -> None:
    study = make_study()
    rows = rows_of(study)
    assert list(dict.fromkeys(row["assumption"] for row in rows)) == ["", "fair links", "rings"]
    assert of_arm(rows, "daso", "relative") == pytest.approx({"": 2.0, "fair links": 2.0, "rings": 1.25})
    assert {row["measure"] for row in rows} == {"training time per sample"}
    arms = [list(row.values()) for row in ranges(study)]
    assert [cells[0].rpartition(">")[2] for cells in arms] == ["ddp", "daso", "lasgd"]
    assert [cells[1:] for cells in arms[1:]] == [
        ["0.02000 s", "2.000", "1.250", "2.000", "3 of 3"],
        ["0.03000 s", "1.333", "0.909", "1.333", "3 of 3"],
    ]


def test_the_baseline_is_the_first_arm_of_ddp(make_study: MakeStudy) -> None:
    """Also where another arm comes first by name, and another arm of ddp has a longer name."""
    study = make_study({name: {"averaging": 1.0, "ddp by nodes": 2.0, "ddp": 3.0} for name in BOTH})
    assert rows_of(study)[0]["arm"] == "ddp"


def test_an_arm_that_lacks_a_run_a_seed_or_the_target_is_has_no_time(make_study: MakeStudy) -> None:
    """On the one seed in common ddp is faster than daso; over all runs of each it would be slower."""
    make_study({name: {"ddp": 400.0, "daso": 440.0, "lasgd": 300.0, "hsgd": 1.0} for name in BOTH})
    make_study({name: {"ddp": 1600.0, "lasgd": 300.0} for name in BOTH}, seed=1)
    study = make_study({name: {"hsgd": 1.0} for name in BOTH}, seed=1, status="diverged")
    rows = rows_of(study)
    assert of_arm(rows, "ddp", "seconds") == pytest.approx(dict.fromkeys(BOTH, 0.8)), "geometric mean"
    assert of_arm(rows, "daso", "seconds") == of_arm(rows, "hsgd", "seconds") == dict.fromkeys(BOTH)
    assert [row["Assumptions"] for row in ranges(study)] == ["2 of 2", "0 of 2", "0 of 2", "2 of 2"]


def test_without_a_run_as_configured_there_is_no_time_as_configured(make_study: MakeStudy) -> None:
    study = make_study({"rings": TIMES["rings"]})
    assert of_arm(rows_of(study), "daso", "relative") == {"": None, "rings": 1.25}
    assert list(ranges(study)[1].values())[1:] == ["–", "–", "1.250", "1.250", "1 of 2"]


def test_unequal_work_is_compared_per_sample(make_study: MakeStudy) -> None:
    make_study({name: {"ddp": 40.0, "daso": 20.0} for name in BOTH})
    rows = rows_of(make_study({name: {"lasgd": 15.0} for name in BOTH}, accuracies=(0.5, 0.6)))
    assert of_arm(rows, "lasgd", "seconds")[""] == pytest.approx(0.015)
    assert of_arm(rows, "lasgd", "relative")[""] == pytest.approx(0.04 / 0.015)


def test_with_one_target_the_scored_crossing_is_compared(make_study: MakeStudy) -> None:
    make_study({"": {"ddp": 40.0, "daso": 20.0}}, target=0.6, accuracies=(0.5, 0.6))
    make_study({"rings": {"ddp": 40.0}}, target=0.6, accuracies=(0.5, 0.5, 0.6))
    rows = rows_of(make_study({"rings": {"daso": 20.0}}, target=0.6, accuracies=(0.5, 0.5)))
    assert {row["measure"] for row in rows} == {"time to target"}
    assert of_arm(rows, "ddp", "seconds") == pytest.approx({"": 40 * 2**0.5, "rings": 40 * 6**0.5})
    assert of_arm(rows, "daso", "seconds")["rings"] is None


def test_worlds_and_sizes_are_never_mixed(make_study: MakeStudy, tmp_path: Path) -> None:
    slow = {name: {arm: 10 * seconds for arm, seconds in arms.items()} for name, arms in TIMES.items()}
    make_study(size="16 nodes")
    make_study(slow, size="4 nodes")
    make_study({"": {"ddp": 7.0, "daso": 7.0}}, size="64 nodes")
    make_study(size="4 nodes", world="local")
    section = section_of(SensitivitySection, all_compared(tmp_path / "results"))
    studies = list(map(rows_of, section.studies))
    places = [(rows[0]["world"], rows[0]["size"]) for rows in studies]
    assert places == [("local", "4 nodes"), ("simulated", "4 nodes"), ("simulated", "16 nodes")]
    assert [of_arm(rows, "ddp", "seconds")[""] for rows in studies] == [0.04, 0.4, 0.04]


@pytest.mark.usefixtures("undrawn")
def test_the_page_shows_runs_under_assumptions_in_their_own_section_alone(
    make_study: MakeStudy, tmp_path: Path
) -> None:
    make_study(size="4 nodes")
    page = report(tmp_path / "results", tmp_path / "out").read_text()
    ordinary, _, section = page.partition("Does the order depend on assumptions?")
    assert "study.assumption=rings" not in ordinary
    assert "study.assumption=rings" in section
    assert f'<span class="chip">{FAR}</span>' in section
    runs = table(tmp_path / "out" / "runs.csv")
    assert {(row["arm"], row["size"], row["assumption"]) for row in runs} == {
        (arm, "4 nodes", assumption) for assumption, arms in TIMES.items() for arm in arms
    }
    rows = table(tmp_path / "out" / "sensitivity.csv")
    assert {(row["assumption"], row["arm"]): float(row["relative"]) for row in rows}["rings", "daso"] == 1.25
