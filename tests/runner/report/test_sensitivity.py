"""Arms under assumptions, from run directories written by hand: times, words, table, figure and page."""

from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import pytest
from sharing import table as rows

from daso_bench.runner.report.build import report
from daso_bench.runner.report.data.arms import compare
from daso_bench.runner.report.data.load import find_runs, load_run
from daso_bench.runner.report.plots.style import drawing
from daso_bench.runner.report.sections.sensitivity import (
    Sensitivity,
    alternative,
    draw,
    sensitivities,
    speeds,
)

Make = Callable[..., Path]
FEW = "simulated: step times were compared with measured ones on 16 ranks"
FAR = "simulated: extrapolated to 256 ranks, step times were compared with measured ones on 16 ranks"
TIMES = {
    "": {"ddp": 40.0, "daso": 20.0, "lasgd": 30.0},
    "rings": {"ddp": 50.0, "daso": 40.0, "lasgd": 45.0},
    "fair links": {"ddp": 40.0, "daso": 20.0, "lasgd": 44.0},
}


@pytest.fixture
def make_study(make_run: Make, tmp_path: Path) -> Callable[..., Path]:
    """Writes a run for each time, by assumption and arm; `more` goes to every run."""

    def make(times: Mapping[str, Mapping[str, float]] = TIMES, size: str = "", **more: object) -> Path:
        for assumption, arms in times.items():
            for arm, seconds in arms.items():
                place = {"arm": arm, "assumption": assumption, "size": size}
                given = {"accuracies": (0.5,), "target": None, "world": "simulated", "labels": [FEW]} | more
                make_run(tmp_path / "results", arm.split()[0], train_s=seconds, place=place, **given)
        return tmp_path / "results"

    return make


def analysed(root: Path) -> list[Sensitivity]:
    return sensitivities(compare(load_run(path, path.name) for path in find_runs(root)))


def test_the_table_is_relative_to_ddp_and_as_configured_comes_first(make_study: Make) -> None:
    ((table,),) = [one.tables for one in analysed(make_study())]
    assert table.assumptions == ["", "fair links", "rings"]
    assert list(table.arms) == ["ddp", "daso", "lasgd"]
    assert [table.relative("daso", assumption) for assumption in table.assumptions] == [2.0, 2.0, 1.25]
    assert table.measure.note == "Compared is the training time of equal work: 1,000 samples in every run."
    assert table.ranking == "daso, then (no order between lasgd and ddp: it turns with 'fair links')"
    assert table.unranked == []


def test_the_baseline_is_the_first_arm_of_ddp(make_study: Make) -> None:
    """Also where another arm comes first by name, and another arm of ddp has a longer name."""
    ((table,),) = [
        one.tables
        for one in analysed(
            make_study({name: {"averaging": 1.0, "ddp by nodes": 2.0, "ddp": 3.0} for name in ("", "rings")})
        )
    ]
    assert table.baseline == "ddp"


def test_an_arm_without_a_finished_run_is_not_ranked_and_the_page_says_why(
    make_study: Make, tmp_path: Path
) -> None:
    times = {name: dict(arms) for name, arms in TIMES.items()}
    del times["rings"]["lasgd"]
    root = make_study(times)
    make_study({"rings": {"lasgd": 45.0}}, status="failed", reason="killed")
    make_study({"": {"hsgd": 1.0}})
    (one,) = analysed(root)
    (table,) = one.tables
    assert table.ranking == "daso, then ddp"
    assert table.unranked == [
        "hsgd: no finished run under 'fair links' and 'rings'",
        "lasgd: no finished run under 'rings'",
    ]
    page = report(root, tmp_path / "out").read_text()
    assert "<li>lasgd: no finished run under &#39;rings&#39;</li>" in page


def test_without_a_run_as_configured_nothing_is_ranked(make_study: Make, tmp_path: Path) -> None:
    root = make_study({"rings": TIMES["rings"]})
    ((table,),) = [one.tables for one in analysed(root)]
    assert table.ranking == "no ranking: no arm has a time under every assumption"
    assert table.unranked[0] == "ddp: no finished run as configured"
    assert "Does the ranking depend on assumptions?" in report(root, tmp_path / "out").read_text()


def test_seeds_are_taken_together_in_the_geometric_mean(make_study: Make) -> None:
    make_study()
    root = make_study({**TIMES, "": {**TIMES[""], "ddp": 160.0}}, seed=1)
    ((table,),) = [one.tables for one in analysed(root)]
    point = table.points["ddp", ""]
    assert (point.runs, point.seconds) == (2, pytest.approx(80.0))
    assert table.relative("daso", "") == pytest.approx(4.0)


def test_arms_of_other_seeds_are_not_compared(make_study: Make) -> None:
    """On the one seed in common ddp is faster; over all runs of each it would be slower."""
    both = ("", "rings")
    make_study({name: {"ddp": 400.0, "daso": 440.0} for name in both})
    root = make_study({name: {"ddp": 1600.0} for name in both}, seed=1)
    ((table,),) = [one.tables for one in analysed(root)]
    assert table.ranking == "no ranking: only ddp has a time under every assumption"
    assert table.unranked == [
        "daso: not all of the seeds that others have finished as configured and under 'rings'"
    ]


def test_a_diverged_run_takes_its_arm_out_of_the_ranking(make_study: Make) -> None:
    both = ("", "rings")
    make_study({name: {"ddp": 400.0, "daso": 200.0} for name in both})
    make_study({name: {"ddp": 400.0} for name in both}, seed=1)
    root = make_study({name: {"daso": 200.0} for name in both}, seed=1, status="diverged")
    ((table,),) = [one.tables for one in analysed(root)]
    assert table.points["daso", ""].seconds is None


def test_unequal_work_is_compared_per_sample(make_study: Make) -> None:
    make_study({name: {"ddp": 40.0, "daso": 20.0} for name in ("", "rings")})
    root = make_study({name: {"lasgd": 15.0} for name in ("", "rings")}, accuracies=(0.5, 0.6))
    ((table,),) = [one.tables for one in analysed(root)]
    assert table.points["lasgd", ""].seconds == pytest.approx(0.015)
    assert table.relative("lasgd", "") == pytest.approx(0.04 / 0.015)
    assert table.measure.unit == " a sample"
    assert "per sample: the runs trained on 1,000 to 2,000 samples" in table.measure.note


def test_with_a_target_the_scored_crossing_is_compared(make_study: Make) -> None:
    make_study({"": {"ddp": 40.0, "daso": 20.0}}, target=0.6, accuracies=(0.5, 0.6))
    make_study({"rings": {"ddp": 40.0}}, target=0.6, accuracies=(0.5, 0.5, 0.6))
    root = make_study({"rings": {"daso": 20.0}}, target=0.6, accuracies=(0.5, 0.5))
    ((table,),) = [one.tables for one in analysed(root)]
    assert table.points["ddp", ""].seconds == pytest.approx(40 * 2**0.5)
    assert table.points["ddp", "rings"].seconds == pytest.approx(40 * 6**0.5)
    assert table.unranked == ["daso: not all runs reached the target under 'rings'"]
    assert table.measure.note == "Compared is the scored time to accuracy 0.6."


def test_different_targets_are_not_compared(make_study: Make) -> None:
    make_study({"": {"ddp": 40.0}}, target=0.5)
    root = make_study({"rings": {"ddp": 40.0}}, target=0.4)
    ((table,),) = [one.tables for one in analysed(root)]
    assert table.times == {}
    assert table.measure.note == "Runs have different targets: nothing is compared."


def test_worlds_and_sizes_are_never_mixed(make_study: Make) -> None:
    slow = {name: {arm: 10 * seconds for arm, seconds in arms.items()} for name, arms in TIMES.items()}
    make_study(size="16 nodes")
    make_study(slow, size="4 nodes")
    make_study({"": {"ddp": 7.0, "daso": 7.0}}, size="64 nodes")
    root = make_study(size="4 nodes", world="local")
    comparisons = compare(load_run(path, path.name) for path in find_runs(root))
    for comparison in comparisons:
        for run in comparison.runs:
            assert (run.world, run.size, run.assumption) == (
                *(comparison.world, comparison.size, comparison.assumption),
            )
    real, simulated = sensitivities(comparisons)
    assert (real.world, [table.size for table in real.tables]) == ("local", ["4 nodes"])
    assert [table.size for table in simulated.tables] == ["4 nodes", "16 nodes"]
    assert [table.points["ddp", ""].seconds for table in simulated.tables] == [400.0, 40.0]
    assert simulated.plain == ["64 nodes"]
    assert simulated.lasting == (
        "At 4 nodes and 16 nodes, under every assumption: daso is faster than lasgd and ddp."
    )


def test_the_figure_has_a_mark_for_each_point_and_words(make_study: Make) -> None:
    ((table,),) = [one.tables for one in analysed(make_study(size="4 nodes"))]
    with drawing("test"):
        axes = draw(table).axes[0]
    lines = [line for line in axes.get_lines() if len(np.asarray(line.get_xdata())) == 1]
    assert len(lines) == 9
    strong = [line for line in lines if line.get_alpha() is None]
    assert [float(np.asarray(line.get_xdata())[0]) for line in strong] == pytest.approx([1, 2, 4 / 3])
    assert list(speeds(table, "daso").values()) == [2.0, 2.0, 1.25]
    assert "daso: 2.000 as configured, 1.250 to 2.000 over all" in alternative(table)
    assert "(simulated, 4 nodes)" in alternative(table)


def test_the_page_shows_runs_under_assumptions_in_their_own_section_alone(
    make_study: Make, tmp_path: Path
) -> None:
    root = make_study(size="4 nodes")
    page = report(root, tmp_path / "out").read_text()
    ordinary, _, own = page.partition("Does the ranking depend on assumptions?")
    assert "study.assumption=rings" not in ordinary
    assert "study.assumption=rings" in own
    assert FEW in own
    assert "Extrapolated" not in own
    assert len(rows(tmp_path / "out" / "runs.csv")) == 9
    found = rows(tmp_path / "out" / "runs.csv")
    assert {(row["arm"], row["size"], row["assumption"]) for row in found} == {
        (arm, "4 nodes", assumption) for assumption, arms in TIMES.items() for arm in arms
    }
    table = rows(tmp_path / "out" / "sensitivity.csv")
    assert {(row["assumption"], row["arm"]): float(row["relative"]) for row in table}["rings", "daso"] == 1.25
    assert list(table[0])[:10] == [
        *("study", "model", "dataset", "world", "size", "assumption", "arm", "runs", "seconds", "relative")
    ]


def test_extrapolation_is_said_first(make_study: Make, tmp_path: Path) -> None:
    make_study(size="4 nodes")
    root = make_study(size="64 nodes", labels=[FAR])
    page = report(root, tmp_path / "out").read_text()
    _, _, own = page.partition("Does the ranking depend on assumptions?")
    first = own[own.index("<p>") :]
    assert first.startswith("<p><strong>Extrapolated: 9 of 18 runs</strong>")
    names = {file.name for file in (tmp_path / "out").iterdir()}
    assert {"sensitivity.csv", "sensitivity_1.svg", "sensitivity_2.svg"} <= names
    assert f'<span class="chip">{FAR}</span>' in own


def test_what_ran_as_configured_only_is_named(make_study: Make, tmp_path: Path) -> None:
    make_study(size="4 nodes")
    root = make_study({"": TIMES[""]})
    page = report(root, tmp_path / "out").read_text()
    assert "nothing is known of their ranking: runs without a size." in page


def test_labels_that_all_arms_share_stand_above_the_table_and_others_at_their_arm(make_study: Make) -> None:
    make_study({name: {"ddp": 2.0} for name in ("", "rings")}, labels=[FEW, "timing only"])
    root = make_study(
        {name: {"daso": 1.0} for name in ("", "rings")}, labels=["timing only", "no cycle", FAR]
    )
    ((table,),) = [one.tables for one in analysed(root)]
    assert table.shared_labels == [FEW, "timing only", FAR]
    assert (table.own_labels("ddp"), table.own_labels("daso")) == ([], ["no cycle"])
