"""What a study comes to, from run directories made by hand (docs/method.md)."""

import csv
import math
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from daso_bench.runner.records.seed_ranges import FRESH
from daso_bench.runner.report.build import report
from daso_bench.runner.report.claims.claim_tables import cells, sentences, speedup_rows
from daso_bench.runner.report.claims.speedups import Speedups, all_speedups, speedups_of
from daso_bench.runner.report.data.arms import compare
from daso_bench.runner.report.data.load import find_runs, load_run
from daso_bench.runner.report.plots.speedup_plot import forest
from daso_bench.runner.report.plots.style import drawing

Make = Callable[..., Path]
BASE, ARM = (100, 104, 96, 108, 92), (80, 84, 76, 86, 75)
EQUAL = (0.01, -0.01, 0.02, -0.02, 0.0)  # ln(T_A / T_A') by repetition


def study(
    make_run: Make,
    root: Path,
    *,
    base: Sequence[float] = BASE,
    arm: Sequence[float] = ARM,
    clock: Sequence[float] | None = EQUAL,
    fresh: float | None = 0.97,
    placebo: float | None = None,
    accuracies: Sequence[float] = (0.60, 0.70, 0.74, 0.78),
    **more: Any,
) -> None:
    """`base` and `arm`: T_train of four evaluations. `fresh`, `placebo`: times the baseline's."""

    def run(strategy: str, seed: int, whole_s: float, role: str = "", **other: Any) -> None:
        place = {"arm": f"{strategy} {role}".strip(), "role": role} | more.get("place", {})
        keys: dict[str, Any] = {**more, **other, "place": place, "arm": role}
        keys = {"accuracies": accuracies} | keys
        make_run(root, strategy, seed, train_s=whole_s / 4, **keys)

    for seed, whole_s in enumerate(base):
        run("ddp", seed, whole_s)
        if clock is not None:
            run("ddp", seed, whole_s / math.exp(clock[seed]), "same_seeds", train={"max_steps": 8})
        if fresh is not None:
            run("ddp", seed + FRESH, whole_s * fresh, "fresh_seeds")
        if placebo is not None:
            run("placebo", seed, whole_s * placebo, "placebo")
    for seed, whole_s in enumerate(arm):
        run("daso", seed, whole_s)


def answered(root: Path) -> Speedups:
    (found,) = all_speedups(compare(load_run(path, path.name) for path in find_runs(root)))
    return found


def test_the_ratio_of_the_rules_with_its_welch_interval(make_run: Make, tmp_path: Path):
    study(make_run, tmp_path)
    (line,) = answered(tmp_path).lines
    assert line.arm.label == "daso"
    assert line.fixed_work is not None
    assert line.fixed_work.point == pytest.approx(1.2467, abs=1e-4)
    assert (line.fixed_work.low, line.fixed_work.high) == pytest.approx((1.1393, 1.3642), abs=1e-4)


def test_a_plan_that_chose_so_pairs_its_seeds(make_run: Make, tmp_path: Path):
    study(make_run, tmp_path, place={"interval": "paired"})
    (line,) = answered(tmp_path).lines
    assert line.fixed_work is not None
    assert (line.fixed_work.low, line.fixed_work.high) == pytest.approx((1.2288, 1.2648), abs=1e-4)


def test_only_repetitions_that_both_have_are_paired(make_run: Make, tmp_path: Path):
    """The arm ran seeds 1 to 5, in each 0.8 of the baseline's time; the baseline 0 to 4."""
    study(make_run, tmp_path, arm=(), place={"interval": "paired"})
    for seed, whole_s in enumerate((*BASE[1:], 500), 1):
        place = {"arm": "daso", "role": "", "interval": "paired"}
        make_run(tmp_path, "daso", seed, (0.6, 0.7, 0.74, 0.78), train_s=0.2 * whole_s, place=place)
    (line,) = answered(tmp_path).lines
    assert line.fixed_work is not None
    assert (line.fixed_work.low, line.fixed_work.high) == pytest.approx((1.25, 1.25))


def test_crossing_times_carry_the_width_of_the_evaluation_grid(make_run: Make, tmp_path: Path):
    """Every run crosses between its third and fourth evaluation: no interval as of equal numbers."""
    study(make_run, tmp_path, base=(100,) * 5, arm=(80,) * 5, accuracies=(0.6, 0.7, 0.74, 0.76))
    found = answered(tmp_path)
    (line,) = found.lines
    assert line.fixed_work is not None
    assert line.to_target is not None
    assert (line.fixed_work.low, line.fixed_work.high) == pytest.approx((1.25, 1.25))
    assert line.to_target.point == pytest.approx(1.25)
    spread = math.log(4 / 3) / math.sqrt(12) * math.sqrt(2 / 5) * 2.306
    assert line.to_target.low == pytest.approx(1.25 * math.exp(-spread), rel=1e-3)
    assert found.budget_s == 200, "twice the baseline's median"


def test_both_noise_floors_and_the_larger_one(make_run: Make, tmp_path: Path):
    study(make_run, tmp_path, fresh=0.97)
    found = answered(tmp_path)
    fixed = found.fixed_floor
    assert fixed.clock is not None
    assert fixed.fresh is not None
    assert fixed.clock.value == pytest.approx(0.0198, abs=1e-4)
    assert fixed.fresh.value == pytest.approx(0.0309, abs=1e-4)
    assert fixed.floor == fixed.fresh.value
    assert not fixed.biased


def test_second_baselines_that_always_win_are_a_bias(make_run: Make, tmp_path: Path):
    study(make_run, tmp_path, clock=(0.01, 0.03, 0.02, 0.02, 0.02))
    found = answered(tmp_path)
    assert found.fixed_floor.clock is not None
    assert found.fixed_floor.clock.value == pytest.approx(0.0292, abs=1e-4)
    assert any("provisional" in sentence for sentence in sentences(found))


def test_without_second_baselines_there_is_no_floor_and_it_is_said(make_run: Make, tmp_path: Path):
    study(make_run, tmp_path, clock=None, fresh=None)
    found = answered(tmp_path)
    assert (found.fixed_floor.floor, found.target_floor.floor) == (None, None)
    assert sentences(found)[0].startswith("No noise floor: A′ and A″ missing")


MISSED = (0.60, 0.70, 0.74, 0.74)  # never 0.75


def with_fresh(
    make_run: Make, root: Path, missed: Sequence[int], *, base_missed: Sequence[int] = (), **more: Any
) -> None:
    """A study whose second baseline with fresh seeds missed the target in the repetitions `missed`."""
    reached = more.get("accuracies", (0.60, 0.70, 0.74, 0.78))
    study(make_run, root, fresh=None, base=(), clock=None, **more)
    for seed, whole_s in enumerate(BASE):
        for role, fresh_seed, failed in (
            ("", seed, base_missed),
            ("same_seeds", seed, base_missed),
            ("fresh_seeds", seed + FRESH, missed),
        ):
            make_run(
                root,
                "ddp",
                fresh_seed,
                MISSED if seed in failed else reached,
                train_s=whole_s / 4,
                place={"arm": f"ddp {role}".strip(), "role": role} | more.get("place", {}),
                arm=role,
            )


@pytest.mark.parametrize(
    ("missed", "base_missed", "arms"),
    [
        ((1, 3), (), ("2 of 5 runs of ddp fresh_seeds",)),
        ((), (2,), ("1 of 5 runs of ddp",)),
        ((0,), (2,), ("1 of 5 runs of ddp", "1 of 5 runs of ddp fresh_seeds")),
        ((0, 1, 2, 3, 4), (), ("5 of 5 runs of ddp fresh_seeds",)),
    ],
)
def test_a_second_baseline_that_missed_the_target_leaves_no_floor_of_it(
    make_run: Make, tmp_path: Path, missed: Sequence[int], base_missed: Sequence[int], arms: Sequence[str]
):
    """Counted at the budget, one of five came to a "floor" of 17 % and two to one of 37 %."""
    why = "; ".join(f"{arm} missed the target" for arm in arms)
    with_fresh(make_run, tmp_path, missed, base_missed=base_missed)
    found = answered(tmp_path)
    assert found.fixed_floor.floor == pytest.approx(0.0, abs=1e-9), "all did all their work"
    assert (found.target_floor.floor, found.target_floor.unknown) == (None, why)
    told = sentences(found)
    assert told[0].endswith("other seeds 0.00% in the time of all work.")
    assert told[1] == f"No noise floor in the time to target, so no verdict on it: {why}."
    (row,) = speedup_rows([found])
    assert row["to_target_noise_floor"] is None


def test_a_second_baseline_that_diverged_is_not_called_missing(make_run: Make, tmp_path: Path):
    study(make_run, tmp_path)
    place = {"arm": "ddp fresh_seeds", "role": "fresh_seeds"}
    make_run(tmp_path, "ddp", 9 + FRESH, (0.6, math.nan), status="diverged", place=place, arm="fresh_seeds")
    found = answered(tmp_path)
    why = "1 of 6 runs of ddp fresh_seeds did not do all their work"
    assert (found.fixed_floor.missing, found.fixed_floor.unknown) == ([], why)
    assert f"No noise floor in the time of all work, so no verdict on it: {why}." in sentences(found)


def test_runs_that_miss_the_target_leave_one_end_open(make_run: Make, tmp_path: Path):
    study(make_run, tmp_path, arm=ARM[:4])
    make_run(tmp_path, "daso", 4, (0.1, 0.2, 0.3, 0.4), train_s=20, place={"arm": "daso", "role": ""})
    (line,) = answered(tmp_path).lines
    assert line.to_target is not None
    assert line.to_target.side == "≤"
    assert line.to_target.low == 0
    assert cells(answered(tmp_path))[0].to_target.startswith("≤ ")


def test_an_arm_with_a_failed_run_still_counts_the_others(make_run: Make, tmp_path: Path):
    study(make_run, tmp_path)
    make_run(tmp_path, "daso", 9, status="failed", place={"arm": "daso", "role": ""})
    (line,) = answered(tmp_path).lines
    assert line.fixed_work is not None


def test_a_diverged_run_leaves_no_time_of_all_work(make_run: Make, tmp_path: Path):
    study(make_run, tmp_path, arm=ARM[:4])
    make_run(tmp_path, "daso", 4, (0.6, math.nan), status="diverged", place={"arm": "daso", "role": ""})
    (line,) = answered(tmp_path).lines
    assert line.fixed_work is None
    assert line.diverged
    assert any("1 of 5 runs of daso did not do all their work" in note for note in line.notes)


def test_runs_that_evaluated_nothing_have_not_diverged(make_run: Make, tmp_path: Path):
    study(make_run, tmp_path, clock=None, fresh=None, target=None, rows=[])
    (comparison,) = compare(load_run(path, path.name) for path in find_runs(tmp_path))
    found = speedups_of(comparison)
    assert found is not None
    assert not any(line.diverged for line in found.lines)


def test_clocks_alone_have_no_model_that_could_come_to_nothing(make_run: Make, tmp_path: Path):
    nothing = (math.nan,) * 4
    for arm, role in (("ddp", ""), ("daso", "")):
        for seed in range(3):
            make_run(
                tmp_path,
                arm,
                seed,
                nothing,
                target=None,
                place={"arm": arm, "role": role},
                launcher={"timing_only": True},
            )
    assert not any(line.diverged for line in answered(tmp_path).lines)


def test_a_run_that_stopped_at_the_target_has_no_time_of_all_work(make_run: Make, tmp_path: Path):
    study(make_run, tmp_path, train={"stop": "confirmed"})
    (line,) = answered(tmp_path).lines
    assert line.fixed_work is None
    assert line.to_target is not None


def test_two_runs_give_no_ratio_at_all(make_run: Make, tmp_path: Path):
    study(make_run, tmp_path, base=BASE[:2], arm=ARM[:2])
    assert all_speedups(compare(load_run(path, path.name) for path in find_runs(tmp_path))) == []


@pytest.mark.parametrize(("times", "forbidden"), [(1.0, False), (0.8, True), (1.25, True)])
def test_a_placebo_that_differs_forbids_all_verdicts(
    make_run: Make, tmp_path: Path, times: float, forbidden: bool
):
    study(make_run, tmp_path, placebo=times, fresh=1.0)
    found = answered(tmp_path)
    assert [line.arm.label for line in found.lines] == ["daso"]
    assert found.placebo is not None
    assert any(reason.startswith("the placebo differs") for reason in found.forbidden) is forbidden


def test_another_ddp_that_is_faster_than_the_baseline_is_a_wrong_baseline(make_run: Make, tmp_path: Path):
    study(make_run, tmp_path, place={"baseline": "ddp"})
    for seed, whole_s in enumerate(BASE):
        make_run(
            tmp_path,
            "ddp",
            seed,
            train_s=whole_s / 8,
            place={"arm": "ddp by nodes", "role": "", "baseline": "ddp"},
            settings={"algorithm": "hierarchical"},
        )
    found = answered(tmp_path)
    assert found.baseline.label == "ddp"
    assert [arm.label for arm in found.faster] == ["ddp by nodes"]
    assert found.wrong == tuple(
        f"wrong baseline: ddp by nodes is faster in {said}" for said in ("time of all work", "time to target")
    )
    assert found.forbidden == (), "a claim that names its comparator is not about the better ddp"


def test_the_study_names_its_baseline(make_run: Make, tmp_path: Path):
    study(make_run, tmp_path, place={"baseline": "daso"}, clock=None, fresh=None)
    found = answered(tmp_path)
    assert found.baseline.label == "daso"
    (line,) = found.lines
    assert line.fixed_work is not None
    assert line.fixed_work.point == pytest.approx(1 / 1.2467, abs=1e-4)


def test_the_bound_is_what_is_left_without_communication(make_run: Make, tmp_path: Path):
    study(make_run, tmp_path)  # 0.2 exposed, 0.1 waiting
    found = answered(tmp_path)
    assert found.bound.value == pytest.approx(1 / 0.7)


def test_throughput_times_statistical_efficiency_is_the_speed_up(make_run: Make, tmp_path: Path):
    study(make_run, tmp_path)
    (line,) = answered(tmp_path).lines
    assert line.parts is not None
    assert line.to_target is not None
    product = line.parts.throughput.point * line.parts.statistical.point
    assert product == pytest.approx(line.to_target.point)


def test_times_that_are_not_valid_give_no_verdict(make_run: Make, tmp_path: Path):
    study(make_run, tmp_path, untimed=["4 ranks on 2 cores"])
    assert "times of some runs are not valid: 4 ranks on 2 cores" in answered(tmp_path).forbidden


def test_the_page_begins_with_the_answer_and_the_table_has_its_numbers(make_run: Make, tmp_path: Path):
    study(make_run, tmp_path / "in", placebo=1.0)
    page = report(tmp_path / "in", tmp_path / "out").read_text()
    assert page.index("The answer: small_cnn on digits") < page.index("Accuracy against training time")
    assert "1.247 [1.139, 1.364]" in page
    assert "No speed-up stands here" not in page
    with (tmp_path / "out" / "speedups.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [(row["arm"], row["placebo"]) for row in rows] == [("daso", "False"), ("placebo placebo", "True")]
    assert float(rows[0]["fixed_work_low"]) == pytest.approx(1.1393, abs=1e-4)
    assert (tmp_path / "out" / "speedups.pdf").is_file()


@pytest.mark.parametrize(
    "times",
    [
        (0.82,),
        (0.97,),
        (1.6,),
        (1.9,),
        (0.75, 1.4),
        (0.62,),
        (0.5,),
        (0.09, 1.05),
        (0.5, 3.0),
        (9.0,),
        (0.003, 40.0),
    ],
)
def test_the_figure_has_labels_on_both_sides_of_1_wherever_its_ratios_lie(
    make_run: Make, tmp_path: Path, times: Sequence[float]
):
    """times: of each arm, over the baseline's."""
    study(make_run, tmp_path, arm=())
    for number, factor in enumerate(times):
        for seed, whole_s in enumerate(BASE):
            make_run(
                tmp_path,
                "daso",
                seed,
                train_s=factor * whole_s / 4,
                place={"arm": f"daso {number}", "role": ""},
                settings={"sync_every": number + 1},
            )
    with drawing("test"):
        figure = forest(answered(tmp_path))
        figure.draw_without_rendering()
    (axes,) = figure.axes
    low, high = axes.get_xlim()
    labels = [*axes.get_xticklabels(), *axes.get_xticklabels(minor=True)]
    shown = [label for label in labels if label.get_text() and low <= label.get_position()[0] <= high]
    values = sorted(float(label.get_text().replace(",", "")) for label in shown)
    assert values[0] < 1 < values[-1]
    assert 1 in values
    # From the least to the greatest ratio no great part of the axis is without a label.
    ends = [math.log(value) for value in (low, *values, high)]
    assert max(b - a for a, b in pairwise(ends)) < 0.4 * (ends[-1] - ends[0])
    boxes = sorted((label.get_window_extent() for label in shown), key=lambda box: box.x0)
    assert all(left.x1 < right.x0 for left, right in pairwise(boxes)), "labels lie on one another"


def test_a_comparison_without_a_baseline_has_no_answer(make_run: Make, tmp_path: Path):
    for seed in range(3):
        make_run(tmp_path, "daso", seed)
        make_run(tmp_path, "lasgd", seed)
    (comparison,) = compare(load_run(path, path.name) for path in find_runs(tmp_path))
    assert speedups_of(comparison) is None
    assert speedup_rows([]) == []
