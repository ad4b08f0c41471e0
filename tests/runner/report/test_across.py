"""Four workloads together: a mean of ratios with its interval, and on how many an arm is near the fastest."""

import csv
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from daso_bench.runner.report.across import TAUS, Across, across, across_rows, mean_words, profile_rows
from daso_bench.runner.report.answer import answers
from daso_bench.runner.report.arms import compare
from daso_bench.runner.report.build import report
from daso_bench.runner.report.load import load_runs
from daso_bench.runner.report.profile import alternative, profile
from daso_bench.runner.report.style import drawing

Make = Callable[..., Path]
TIMES = (0.5, 0.5, 1.25, 2.0)  # of the baseline's, by workload
REACHED, MISSED = (0.6, 0.7, 0.74, 0.78), (0.1, 0.2, 0.3, 0.4)


def workloads(
    make_run: Make, root: Path, times: Sequence[float] = TIMES, missed: Sequence[int] = (), **more: object
) -> None:
    """One data set for each of `times`; daso misses its target on those of `missed`."""
    for number, of_arm in enumerate(times):
        keys = {"train": {"dataset_number": number}, **more}
        for seed in range(3):
            for strategy, train_s in (("ddp", 25.0 + seed), ("daso", (25.0 + seed) * of_arm)):
                accuracies = MISSED if strategy == "daso" and number in missed else REACHED
                path = make_run(root, strategy, seed, accuracies, train_s=train_s, **keys)
                text = (path / "config.yaml").read_text()
                (path / "config.yaml").write_text(
                    text.replace("digits.Digits", f"digits.Digits\n  name: digits{number}")
                )


def over(root: Path) -> list[Across]:
    return across(answers(compare(load_runs(root, "test"))))


def only(root: Path) -> Across:
    (found,) = over(root)
    return found


def test_the_mean_over_workloads_is_geometric(make_run: Make, tmp_path: Path):
    """2 · 2 · 0.8 · 0.5 = 1.6, to the power of a quarter."""
    workloads(make_run, tmp_path)
    rows = {row["measure"]: row for row in across_rows([only(tmp_path)])}
    assert list(rows) == ["time of all work", "time to target"]
    for row in rows.values():
        assert (row["arm"], row["workloads"], row["without"]) == ("daso", 4, "")
        assert row["ratio"] == pytest.approx(1.6**0.25)
        assert row["ratio_low"] < 1.6**0.25 < row["ratio_high"]


def test_three_workloads_are_listed_one_by_one(make_run: Make, tmp_path: Path):
    workloads(make_run, tmp_path, TIMES[:3])
    assert over(tmp_path) == []


def test_a_missed_target_rules_the_mean_out_and_stays_in_the_profile(make_run: Make, tmp_path: Path):
    workloads(make_run, tmp_path, missed=[0])
    found = only(tmp_path)
    rows = {row["measure"]: row for row in across_rows([found])}
    assert rows["time of all work"]["ratio"] is not None
    assert rows["time to target"]["ratio"] is None
    assert rows["time to target"]["without"] == "small_cnn on digits0"
    assert mean_words(*found.means["daso", "time to target"]) == "no mean: no time on small_cnn on digits0"
    assert found.profile["daso"][0] == 1 / 4, "fastest on one of the three that it reached"
    assert found.profile["daso"][-1] == 3 / 4


def test_the_profile_is_the_share_of_workloads_within_a_factor(make_run: Make, tmp_path: Path):
    workloads(make_run, tmp_path)
    found = only(tmp_path)
    at = {tau: (found.profile["ddp"][place], found.profile["daso"][place]) for place, tau in enumerate(TAUS)}
    assert at[1.0] == (0.5, 0.5)
    assert at[1.3] == (0.5, 0.75)
    assert at[2.1] == (1.0, 1.0)
    rows = [row for row in profile_rows([found]) if row["arm"] == "daso"]
    assert [row["share"] for row in rows] == [0.5, 0.75, 1.0, 1.0]
    assert (rows[0]["tau"], rows[-1]["tau"]) == (1.0, 4.0)


def test_without_targets_the_profile_is_of_all_work(make_run: Make, tmp_path: Path):
    workloads(make_run, tmp_path, target=None)
    found = only(tmp_path)
    assert found.measure == "time of all work"
    assert [measure for _, measure in found.means] == ["time of all work"]


def test_studies_are_put_together_only_where_none_of_them_has_enough(make_run: Make, tmp_path: Path):
    workloads(make_run, tmp_path / "a", TIMES[:2], study="one")
    workloads(make_run, tmp_path / "b", TIMES, study="two")
    assert [one.study for one in over(tmp_path / "b")] == ["two"]
    assert [one.study for one in over(tmp_path)] == ["two"], "one and two share workloads"


def test_a_workload_that_lacks_an_arm_is_named(make_run: Make, tmp_path: Path):
    workloads(make_run, tmp_path)
    for seed in range(3):
        path = make_run(tmp_path, "sgp", seed, REACHED, train_s=20.0, train={"dataset_number": 0})
        text = (path / "config.yaml").read_text()
        (path / "config.yaml").write_text(text.replace("digits.Digits", "digits.Digits\n  name: digits0"))
    made, without = only(tmp_path).means["sgp", "time of all work"]
    assert made is None
    assert without == [f"small_cnn on digits{number}" for number in (1, 2, 3)]


def test_the_figure_has_a_step_curve_for_each_arm(make_run: Make, tmp_path: Path):
    workloads(make_run, tmp_path)
    found = only(tmp_path)
    with drawing("test"):
        lines = profile(found).axes[0].get_lines()
    assert [line.get_drawstyle() for line in lines] == ["steps-post"] * 2
    assert "daso: fastest on 50%, within 4 times on 100%" in alternative(found)


def test_the_page_has_table_figure_and_the_way_to_the_commands(make_run: Make, tmp_path: Path):
    workloads(make_run, tmp_path / "in")
    page = report(tmp_path / "in", tmp_path / "out").read_text()
    assert "Over 4 workloads" in page
    for number in (1, 2, 3, 4):
        assert (
            f'<a href="#commands-{number}">commands of its runs, small_cnn on digits{number - 1}</a>' in page
        )
        assert f'id="commands-{number}"' in page
    assert (tmp_path / "out" / "profile.pdf").is_file()
    with (tmp_path / "out" / "across.csv").open() as file:
        assert len(list(csv.DictReader(file))) == 2
