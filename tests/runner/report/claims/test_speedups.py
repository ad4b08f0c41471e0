"""Speed-ups of a study, from run directories made by hand (docs/method.md)."""

import math
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from sharing import Make, there

from daso_bench.runner.records.study_plan import FRESH
from daso_bench.runner.report import words
from daso_bench.runner.report.claims.arm_speedup import ArmSpeedup
from daso_bench.runner.report.claims.claim_tables import speedup_rows
from daso_bench.runner.report.claims.paper_claims import Claim, load
from daso_bench.runner.report.claims.speedups import Check, Speedups, speedups_of
from daso_bench.runner.report.claims.study_checks import all_speedups, baseline_strong, noise, valid_times
from daso_bench.runner.report.data.arms import Comparison, compare
from daso_bench.runner.report.data.load import find_runs, load_run
from daso_bench.runner.report.plots.pictures import drawing
from daso_bench.runner.report.plots.saving_lanes import lanes
from daso_bench.runner.report.statistics.welch import Ratio, Times, holm, welch

BASE, ARM = (100, 104, 96, 108, 92), (80, 84, 76, 86, 75)
MISSED = (0.60, 0.70, 0.74, 0.74)  # never 0.75
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
    missed: Sequence[int] = (),
    fresh_missed: Sequence[int] = (),
    **more: Any,
) -> None:
    """`base` and `arm`: T_train of four evaluations. `fresh`, `placebo`: times the baseline's.

    `missed`, `fresh_missed`: repetitions in which the baseline, or that of fresh seeds, misses the target.
    """

    def run(strategy: str, seed: int, whole_s: float, role: str = "", **other: Any) -> None:
        place = {"arm": f"{strategy} {role}".strip(), "role": role} | more.get("place", {})
        keys: dict[str, Any] = {**more, **other, "place": place, "arm": role}
        keys = {"accuracies": accuracies} | keys
        make_run(root, strategy, seed, train_s=whole_s / 4, **keys)

    for seed, whole_s in enumerate(base):
        missing: dict[str, Any] = {"accuracies": MISSED}
        own, of_fresh = (missing if seed in seeds else {} for seeds in (missed, fresh_missed))
        run("ddp", seed, whole_s, **own)
        if clock is not None:
            part: dict[str, Any] = {"train": {"max_steps": 8}}
            run("ddp", seed, whole_s / math.exp(clock[seed]), "same_seeds", **part, **own)
        if fresh is not None:
            run("ddp", seed + FRESH, whole_s * fresh, "fresh_seeds", **of_fresh)
        if placebo is not None:
            run("placebo", seed, whole_s * placebo, "placebo")
    for seed, whole_s in enumerate(arm):
        run("daso", seed, whole_s)


def runs_of(make_run: Make, root: Path, arm: str, times: Sequence[float], *values: Any, **more: Any) -> None:
    """Runs of an arm, of the strategy that its name begins with; `times`: T_train of four evaluations."""
    place = {"arm": arm, "role": ""} | more.pop("place", {})
    for seed, whole_s in enumerate(times):
        make_run(root, arm.split()[0], seed, *values, train_s=whole_s / 4, place=place, **more)


def claim_of(name: str, **changes: Any) -> Claim:
    """The shipped claim of that name, with `changes`."""
    (claim,) = [claim for claim in load() if claim.id == name]
    return replace(claim, **changes)


def comparisons_of(root: Path) -> list[Comparison]:
    return compare(load_run(path, path.name) for path in find_runs(root))


def answered(root: Path) -> Speedups:
    (found,) = all_speedups(comparisons_of(root))
    return found


def reasons(check: Check) -> dict[str, str]:
    """Why a check forbids to compare arms, by their labels."""
    return {each.label: each.reason for each in check.forbids}


def line_of(root: Path) -> ArmSpeedup:
    (line,) = answered(root).lines
    return line


def ends(ratio: Ratio | None) -> tuple[float, float]:
    return there(ratio).low, there(ratio).high


def test_the_ratio_and_interval_of_the_rules(make_run: Make, tmp_path: Path):
    study(make_run, tmp_path)
    line = line_of(tmp_path)
    assert (line.arm.label, line.notes) == ("daso", ())
    assert there(line.fixed_work).point == pytest.approx(1.2467, abs=1e-4)
    assert ends(line.fixed_work) == pytest.approx((1.1393, 1.3642), abs=1e-4)


def test_crossing_times_carry_the_width_of_the_evaluation_grid(make_run: Make, tmp_path: Path):
    """Every run crosses between its third and fourth evaluation: no interval as of equal numbers."""
    study(make_run, tmp_path, base=(100,) * 5, arm=(80,) * 5, accuracies=(0.6, 0.7, 0.74, 0.76))
    line = line_of(tmp_path)
    to_target = there(line.to_target)
    assert ends(line.fixed_work) == pytest.approx((1.25, 1.25))
    assert to_target.point == pytest.approx(1.25)
    spread = math.log(4 / 3) / math.sqrt(12) * math.sqrt(2 / 5) * 2.306
    assert to_target.low == pytest.approx(1.25 * math.exp(-spread), rel=1e-3)
    assert answered(tmp_path).budget_s == 200, "twice the baseline's median"


def test_a_slow_run_is_left_out_and_named_and_the_ratio_of_all_runs_is_there(make_run: Make, tmp_path: Path):
    study(make_run, tmp_path, arm=(80, 84, 76, 86, 160))
    found = answered(tmp_path)
    (line,) = found.lines
    typical_arm = (80 * 84 * 76 * 86) ** (1 / 4)
    typical_base = (100 * 104 * 96 * 108 * 92) ** (1 / 5)
    assert there(line.fixed_work).point == pytest.approx(typical_base / typical_arm)
    assert there(line.to_target).point == pytest.approx(typical_base / typical_arm)
    assert there(line.throughput).point * there(line.statistical).point == pytest.approx(
        there(line.to_target).point
    )
    assert [sentence.split(";")[0] for sentence in line.notes] == [
        f"{work} without slow runs: seed 4 of daso (1.90 times the median of its arm)"
        for work in ("time of all work", "time to target")
    ]
    every = there(welch(Times(BASE), Times((80, 84, 76, 86, 160))))
    assert line.notes[0].endswith(f"; with all runs: {words.interval(every)}")
    (row,) = speedup_rows([found])
    assert row["remarks"] == "; ".join(line.notes)
    assert row["runs"] == 5


def test_losses_are_corrected_for_all_arms(make_run: Make, tmp_path: Path):
    """Two arms are slower and lose points; one does neither."""
    study(make_run, tmp_path)
    for number, final in enumerate((0.70, 0.71)):
        arm = f"hsgd {number}"
        more: dict[str, Any] = {"place": {"arm": arm, "role": ""}, "settings": {"period": number + 2}}
        for seed, whole_s in enumerate(BASE):
            curve = (0.6, 0.65, 0.68, final + 0.001 * seed)
            make_run(tmp_path, "hsgd", seed, curve, train_s=1.2 * whole_s / 4, arm=arm, **more)
    lines = answered(tmp_path).lines
    assert len(lines) == 3
    for name in ("fixed_work", "quality"):
        estimates = [there(getattr(line, name)) for line in lines]
        p = [each.p_not_below(1.0 if name == "fixed_work" else 0.0) for each in estimates]
        found = [line.holm_loss[0] if name == "fixed_work" else line.holm_points_lost for line in lines]
        assert found == pytest.approx(holm(p))
        assert max(p) > 0.5
        assert sorted(p)[1] < 0.01


def test_a_run_that_missed_the_target_is_no_slow_run(make_run: Make, tmp_path: Path):
    """It counts at the budget, and the ratio is a bound."""
    study(make_run, tmp_path, missed=(4,))
    line = line_of(tmp_path)
    assert there(line.to_target).side == "≥"
    assert not any(sentence.startswith("time to target") for sentence in line.notes)


@pytest.mark.parametrize(
    ("clock", "expected", "biased"),
    [(EQUAL, 0.0198, False), ((0.01, 0.03, 0.02, 0.02, 0.02), 0.0292, True)],
)
def test_both_noise_floors_and_the_larger_one(
    make_run: Make, tmp_path: Path, clock: Sequence[float], expected: float, biased: bool
):
    """Second baselines that always win are a bias."""
    study(make_run, tmp_path, fresh=0.97, clock=clock)
    found = answered(tmp_path)
    fixed = found.fixed_floor
    assert (fixed.clock, fixed.fresh) == pytest.approx((expected, 0.0309), abs=1e-4)
    assert fixed.floor == fixed.fresh
    assert fixed.biased == biased


@pytest.mark.parametrize(
    ("fresh_missed", "missed", "arms"),
    [
        ((1, 3), (), ("2 of 5 runs of ddp fresh_seeds",)),
        ((), (2,), ("1 of 5 runs of ddp",)),
        ((0,), (2,), ("1 of 5 runs of ddp", "1 of 5 runs of ddp fresh_seeds")),
        ((0, 1, 2, 3, 4), (), ("5 of 5 runs of ddp fresh_seeds",)),
    ],
)
def test_a_second_baseline_that_missed_the_target_leaves_no_floor_of_it(
    make_run: Make, tmp_path: Path, fresh_missed: Sequence[int], missed: Sequence[int], arms: Sequence[str]
):
    """Counted at the budget, one of five came to a "floor" of 17 % and two to one of 37 %."""
    why = "; ".join(f"{arm} missed the target" for arm in arms)
    study(make_run, tmp_path, clock=(0,) * 5, fresh=1.0, missed=missed, fresh_missed=fresh_missed)
    found = answered(tmp_path)
    assert found.fixed_floor.floor == pytest.approx(0.0, abs=1e-9), "all did all their work"
    assert (found.target_floor.floor, found.target_floor.unknown) == (None, why)
    (row,) = speedup_rows([found])
    assert row["to_target_noise_floor"] is None
    told = noise(found)
    assert told.level == "amber"
    assert told.sentence.startswith(f"no noise floor of the time to target: {why}; a gain below 1.")
    assert not any("of the time to target:" in detail for detail in told.details)


def test_a_second_baseline_that_diverged_is_not_called_missing(make_run: Make, tmp_path: Path):
    study(make_run, tmp_path)
    place = {"arm": "ddp fresh_seeds", "role": "fresh_seeds"}
    make_run(tmp_path, "ddp", 9 + FRESH, (0.6, math.nan), status="diverged", place=place, arm="fresh_seeds")
    found = answered(tmp_path)
    why = "1 of 6 runs of ddp fresh_seeds did not do all their work"
    assert (found.fixed_floor.missing, found.fixed_floor.unknown) == ([], why)


def test_runs_that_miss_the_target_leave_one_end_open(make_run: Make, tmp_path: Path):
    study(make_run, tmp_path, arm=ARM[:4])
    make_run(tmp_path, "daso", 4, (0.1, 0.2, 0.3, 0.4), train_s=20, place={"arm": "daso", "role": ""})
    ratio = there(line_of(tmp_path).to_target)
    assert (ratio.side, ratio.low) == ("≤", 0)
    assert words.interval(ratio).startswith("≤ ")


def test_a_diverged_run_leaves_no_time_of_all_work(make_run: Make, tmp_path: Path):
    study(make_run, tmp_path, arm=ARM[:4])
    make_run(tmp_path, "daso", 4, (0.6, math.nan), status="diverged", place={"arm": "daso", "role": ""})
    line = line_of(tmp_path)
    assert (line.fixed_work, line.diverged) == (None, True)
    assert any("1 of 5 runs of daso did not do all their work" in note for note in line.notes)


@pytest.mark.parametrize(
    "rows", [{"rows": []}, {"accuracies": (math.nan,) * 4, "launcher": {"timing_only": True}}]
)
def test_without_a_metric_nothing_has_diverged(make_run: Make, tmp_path: Path, rows: dict[str, Any]):
    """Neither runs that evaluated nothing, nor clocks alone."""
    study(make_run, tmp_path, clock=None, fresh=None, target=None, **rows)
    (comparison,) = comparisons_of(tmp_path)
    found = there(speedups_of(comparison))
    assert not any(line.diverged for line in found.lines)


def test_a_run_that_stopped_at_the_target_has_no_time_of_all_work(make_run: Make, tmp_path: Path):
    study(make_run, tmp_path, train={"stop": "confirmed"})
    line = line_of(tmp_path)
    assert line.fixed_work is None
    assert line.to_target is not None


@pytest.mark.parametrize(("factor", "forbidden"), [(1.0, False), (0.8, True), (1.25, True)])
def test_a_placebo_that_differs_forbids_all_verdicts(
    make_run: Make, tmp_path: Path, factor: float, forbidden: bool
):
    study(make_run, tmp_path, placebo=factor, fresh=1.0)
    found = answered(tmp_path)
    (line,) = found.lines
    assert line.arm.label == "daso"
    assert found.placebo is not None
    assert found.not_comparable(line.arm) == ("placebo differs" if forbidden else "")
    assert noise(found).sentence.startswith("the placebo differs from the baseline in time") is forbidden


def test_another_ddp_that_is_faster_than_the_baseline_is_a_wrong_baseline(make_run: Make, tmp_path: Path):
    study(make_run, tmp_path, place={"baseline": "ddp"})
    nodes = {"place": {"baseline": "ddp"}, "settings": {"algorithm": "hierarchical"}}
    runs_of(make_run, tmp_path, "ddp by nodes", [whole_s / 2 for whole_s in BASE], **nodes)
    found = answered(tmp_path)
    assert found.baseline.label == "ddp"
    works = ["time of all work", "time to target"]
    assert found.faster == {"ddp by nodes": works}
    (wrong,) = baseline_strong(found).forbids
    assert wrong.sentence == f"wrong baseline: ddp by nodes is faster in {' and '.join(works)}"
    assert (wrong.label, wrong.spares) == ("ddp", "named comparators")


def test_the_study_names_its_baseline(make_run: Make, tmp_path: Path):
    study(make_run, tmp_path, place={"baseline": "daso"}, clock=None, fresh=None)
    assert answered(tmp_path).baseline.label == "daso"
    ratio = there(line_of(tmp_path).fixed_work)
    assert ratio.point == pytest.approx(1 / 1.2467, abs=1e-4)


def test_times_that_are_not_valid_give_no_verdict(make_run: Make, tmp_path: Path):
    study(make_run, tmp_path, untimed=["4 ranks on 2 cores"])
    found = answered(tmp_path)
    assert valid_times(found).sentence == "times of some runs are not valid: 4 ranks on 2 cores"
    assert found.not_comparable(found.lines[0].arm) == "times not valid"


@pytest.mark.parametrize(
    ("times", "narrow"),
    [((0.97,), True), ((0.75, 1.4), False), ((0.003, 40.0), False), ((0.003, 40.0), True)],
)
def test_the_figure_has_labels_on_both_sides_of_0_wherever_its_arms_lie(
    make_run: Make, tmp_path: Path, times: Sequence[float], narrow: bool
):
    """times: of each arm, over the baseline's."""
    study(make_run, tmp_path, arm=())
    for number, factor in enumerate(times):
        settings = {"sync_every": number + 1}
        times_s = [factor * s for s in BASE]
        runs_of(make_run, tmp_path, f"daso {number}", times_s, (0.60, 0.76, 0.77, 0.78), settings=settings)
    with drawing("test"):
        figure = lanes(answered(tmp_path), narrow=narrow)
        figure.draw_without_rendering()
    axes = figure.axes[0]
    low, high = axes.get_xlim()
    shown = [label for label in axes.get_xticklabels() if low <= label.get_position()[0] <= high]
    values = sorted(label.get_position()[0] for label in shown)
    assert low >= -1.1
    assert values[0] < 0 < values[-1] or min(values, key=abs) == pytest.approx(0)
    boxes = sorted((label.get_window_extent() for label in shown), key=lambda box: box.x0)
    assert len(shown) >= 3
    assert all(left.x1 < right.x0 for left, right in pairwise(boxes)), "labels lie on one another"


def test_a_comparison_without_a_baseline_has_no_speed_up(make_run: Make, tmp_path: Path):
    for strategy in ("daso", "lasgd"):
        runs_of(make_run, tmp_path, strategy, (100,) * 3)
    (comparison,) = comparisons_of(tmp_path)
    assert speedups_of(comparison) is None
    assert speedup_rows([]) == []
