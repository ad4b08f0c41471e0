"""What a study comes to at the two values beside its target, and how they are found."""

import csv
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from daso_bench.runner.report.arms import Comparison, compare
from daso_bench.runner.report.build import report
from daso_bench.runner.report.load import find_runs, load_run
from daso_bench.runner.report.neighbours import CUT, Neighbours, at_words, neighbour_rows, neighbours

Make = Callable[..., Path]
# At 10, 20, 30, 40 and 50 s: 0.925 is met at 30 s, 0.95 at 40 s, 0.975 at 50 s.
RISING = (0.5, 0.7, 0.93, 0.96, 0.98)


def compared(root: Path) -> Comparison:
    (comparison,) = compare(load_run(path, path.name) for path in find_runs(root))
    return comparison


def study(make_run: Make, root: Path, *, arm: tuple[float, ...] = RISING, **more: Any) -> None:
    """Three runs of ddp with 10 s between evaluations, and of daso with 5 s."""
    for seed in range(3):
        make_run(root, "ddp", seed, RISING, target=0.95, train_s=10.0, **more)
        make_run(root, "daso", seed, arm, target=0.95, train_s=5.0, **more)


def with_splits(root: Path, sizes: dict[str, int]) -> None:
    """The runs below `root` as if they had recorded the sizes of their splits."""
    for path in root.rglob("metrics.jsonl"):
        rows = [json.loads(line) for line in path.read_text().splitlines()]
        rows = [row | {"split_samples": sizes} if row["kind"] == "summary" else row for row in rows]
        path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))


def beside(root: Path) -> Neighbours:
    found = neighbours(compared(root))
    assert found is not None
    return found


def test_each_arm_has_its_share_its_scored_time_and_its_ratio_at_each_of_three_targets(
    make_run: Make, tmp_path: Path
):
    study(make_run, tmp_path)
    with_splits(tmp_path, {"train": 1149, "validation": 288, "test": 360})
    rows = neighbour_rows([compared(tmp_path)])
    assert [(row["arm"], row["target"]) for row in rows] == [
        *(("ddp", target) for target in (0.925, 0.95, 0.975)),
        *(("daso", target) for target in (0.925, 0.95, 0.975)),
    ]
    times = [row["scored_median_s"] for row in rows]
    assert times[:3] == pytest.approx([(20 * 30) ** 0.5, (30 * 40) ** 0.5, (40 * 50) ** 0.5])
    assert times[3:] == pytest.approx([time / 2 for time in times[:3]])
    assert [row["scored_geometric_mean_s"] for row in rows] == pytest.approx(times)
    assert {(row["reached"], row["runs"]) for row in rows} == {(3, 3)}
    assert [row["ratio"] for row in rows] == [None, None, None, *(pytest.approx(2.0),) * 3]
    assert all(row["ratio_low"] < 2 < row["ratio_high"] for row in rows[3:])


def test_the_step_comes_from_the_recorded_splits_and_the_page_says_so(make_run: Make, tmp_path: Path):
    study(make_run, tmp_path)
    with_splits(tmp_path, {"train": 1149, "validation": 288, "test": 360})
    found = beside(tmp_path)
    assert found.grid.step == 0.025
    assert found.said == (
        "Steps of 0.025: the smallest round number of which 0.95 is a multiple that is at least the binomial "
        "standard error, at 0.95, of the difference between the validation split (288 samples) and the test "
        "split (360)."
    )


def test_records_without_the_other_split_take_both_as_large_and_say_so(make_run: Make, tmp_path: Path):
    study(make_run, tmp_path)
    assert "two splits of 360 samples (so many has the test split; of the other" in beside(tmp_path).said
    assert beside(tmp_path).grid.step == 0.025


def test_a_large_split_makes_the_grid_finer(make_run: Make, tmp_path: Path):
    study(make_run, tmp_path)
    with_splits(tmp_path, {"validation": 5_000, "test": 10_000})
    assert beside(tmp_path).targets == [0.945, 0.95, 0.955]


def test_where_few_reach_a_neighbour_there_is_a_rate_and_neither_time_nor_ratio(
    make_run: Make, tmp_path: Path
):
    study(make_run, tmp_path, arm=(0.5, 0.7, 0.93, 0.96, 0.96))
    row = next(
        row for row in neighbour_rows([compared(tmp_path)]) if (row["arm"], row["target"]) == ("daso", 0.975)
    )
    assert (row["reached"], row["runs"], row["rate_only"]) == (0, 3, True)
    assert (row["scored_median_s"], row["scored_geometric_mean_s"], row["ratio"]) == (None, None, None)
    line = {arm.label: places for arm, places in beside(tmp_path).lines}["daso"]
    assert at_words(line[2]) == ["0 of 3 [0.00, 0.56]", "rate only"]
    assert at_words(line[1])[1] == "median 17.32 s"
    assert at_words(line[1])[2].startswith("2.000 [")


def test_runs_that_miss_a_neighbour_leave_one_end_of_the_ratio_open(make_run: Make, tmp_path: Path):
    for seed in range(4):
        make_run(tmp_path, "ddp", seed, RISING, target=0.95, train_s=10.0)
        last = 0.98 if seed else 0.96
        make_run(tmp_path, "daso", seed, (*RISING[:4], last), target=0.95, train_s=5.0)
    row = neighbour_rows([compared(tmp_path)])[-1]
    assert (row["reached"], row["runs"], row["ratio_bound"], row["ratio_low"]) == (3, 4, "≤", 0.0)


def test_runs_that_stopped_at_the_target_tell_nothing_of_a_higher_one(make_run: Make, tmp_path: Path):
    study(make_run, tmp_path, train={"stop": "first"})
    rows = [row for row in neighbour_rows([compared(tmp_path)]) if row["target"] == 0.975]
    assert [(row["reached"], row["ratio"], row["remarks"]) for row in rows] == [(None, None, CUT)] * 2


def test_a_baseline_that_stopped_at_the_target_gives_no_ratio_at_a_higher_one(make_run: Make, tmp_path: Path):
    for seed in range(3):
        make_run(tmp_path, "ddp", seed, RISING, target=0.95, train={"stop": "first"})
        make_run(tmp_path, "daso", seed, RISING, target=0.95)
    row = neighbour_rows([compared(tmp_path)])[-1]
    assert (row["arm"], row["reached"], row["ratio"]) == ("daso", 3, None)


@pytest.mark.parametrize(
    "more",
    [
        {"target": None},
        {"train": {"target_metric": "loss"}},
        {"rows": ()},
    ],
)
def test_without_a_target_of_accuracy_on_counted_samples_there_are_no_neighbours(
    more: dict[str, Any], make_run: Make, tmp_path: Path
):
    make_run(tmp_path, **more)
    assert neighbours(compared(tmp_path)) is None


def test_the_table_and_the_page_show_them(make_run: Make, tmp_path: Path):
    study(make_run, tmp_path / "runs")
    page = report(tmp_path / "runs", tmp_path / "out").read_text()
    assert "At the neighbouring targets" in page
    assert '<th scope="col">0.95 (the target)</th><th scope="col">0.975</th>' in page
    with open(tmp_path / "out" / "neighbours.csv") as file:
        assert len(list(csv.DictReader(file))) == 6
    assert all((tmp_path / "out" / f"neighbours.{kind}").is_file() for kind in ("md", "tex"))
