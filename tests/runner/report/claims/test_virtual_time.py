"""Ratios in virtual time: model error, arms with the baseline's trajectory, and two checks."""

import math
import shutil
from pathlib import Path
from typing import Any

import pytest
from sharing import Make, there
from test_speedups import answered, ends, line_of, study

from daso_bench.runner.records.study_plan import FRESH
from daso_bench.runner.report.claims.arm_speedup import WORK, error_of_model, rates
from daso_bench.runner.report.claims.claim_tables import speedup_rows
from daso_bench.runner.report.claims.study_checks import noise, valid_times
from daso_bench.runner.report.data.load import find_runs
from daso_bench.runner.report.statistics.model_error import ALL


def by_seed(seed: int) -> tuple[float, ...]:
    """Evaluations that differ from seed to seed; the crossing is at another one in some."""
    return (0.5 + 0.01 * seed, 0.60, 0.74 + 0.005 * seed, 0.78)


def virtual(
    make_run: Make, root: Path, *, like: bool, arm: float = 100.0, fresh: float = 100.0, **more: Any
) -> None:
    """ddp and hsgd in virtual time, 100 s and `arm` s; `like`: hsgd has ddp's own evaluations."""
    world = {"world": "simulated"} | more
    for seed in range(5):
        own, moved = by_seed(seed), tuple(value + 0.001 for value in by_seed(seed))
        for strategy, role, values, whole_s in (
            ("ddp", "", own, 100.0),
            ("ddp", "same_seeds", own, 100.0),
            ("ddp", "fresh_seeds", own, fresh),
            ("placebo", "placebo", own, 100.0),
            ("hsgd", "", own if like else moved, arm),
        ):
            place = {"arm": f"{strategy} {role}".strip(), "role": role}
            repetition = seed + FRESH if role == "fresh_seeds" else seed
            make_run(root, strategy, repetition, values, train_s=whole_s / 4, place=place, arm=role, **world)


def test_every_ratio_of_times_in_virtual_time_carries_the_model_error(make_run: Make, tmp_path: Path):
    virtual(make_run, tmp_path, like=False, arm=103.2)
    found, line = answered(tmp_path), line_of(tmp_path)
    error = there(error_of_model(found.baseline, line.arm))
    assert (error.kind, error.carried) == (ALL, True)
    half = math.log(there(line.fixed_work).high / there(line.fixed_work).low) / 2
    assert half == pytest.approx(error.reach) == pytest.approx(0.1008, abs=1e-4)
    ratios = (line.fixed_work, line.to_target, line.throughput, rates(found.baseline, line.arm))
    assert {there(ratio).model_error for ratio in ratios} == {error}
    assert {there(ratio).high > there(ratio).low * 1.1 for ratio in ratios} == {True}
    assert there(line.statistical).model_error is None, "samples are of real gradients"
    assert there(line.throughput).point * there(line.statistical).point == pytest.approx(
        there(line.to_target).point
    )


def test_the_noise_floor_of_virtual_time_is_the_model_error_and_copies_are_no_arms(
    make_run: Make, tmp_path: Path
):
    virtual(make_run, tmp_path, like=False)
    found = answered(tmp_path)
    assert [arm.label for arm in found.comparison.arms] == ["ddp", "ddp fresh_seeds", "hsgd"]
    assert (found.placebo, found.fixed_floor.missing, found.fixed_floor.biased) == (None, [], False)
    assert found.fixed_floor.floor == pytest.approx(0.0171, abs=1e-4)


def test_the_floor_of_fresh_seeds_is_of_one_model_on_both_sides(make_run: Make, tmp_path: Path):
    virtual(make_run, tmp_path, like=False, fresh=100 / 1.5)
    found = answered(tmp_path)
    assert found.fixed_floor.fresh == found.fixed_floor.floor == pytest.approx(0.5)


def test_with_jitter_same_seeds_and_placebo_are_real_and_missed(make_run: Make, tmp_path: Path):
    jitter: dict[str, Any] = {"cluster": {"device": {"jitter": "gaussian", "jitter_cv": 0.05}}}
    virtual(make_run, tmp_path / "all", like=False, **jitter)
    found = answered(tmp_path / "all")
    placebo = there(found.placebo)
    assert placebo.arm.label == "placebo placebo"
    assert ends(placebo.to_target) == pytest.approx((1 / 1.106, 1.106), abs=1e-3), "no width is no result"
    assert found.fixed_floor.clock == pytest.approx(0.0171, abs=1e-4), "not below the model error"
    for path in find_runs(tmp_path / "all"):
        if "same_seeds" in (path / "config.yaml").read_text():
            shutil.rmtree(path)
    assert answered(tmp_path / "all").fixed_floor.missing == ["the same seeds"]


@pytest.mark.parametrize("world", ["simulated", "local"])
def test_an_arm_with_the_own_trajectory_of_the_baseline_is_compared_seed_by_seed(
    make_run: Make, tmp_path: Path, world: str
):
    """The evaluation grid and the scatter of seeds cancel: 1 / 1.032 = 0.969, not [0.82, 1.15]."""
    virtual(make_run, tmp_path, like=True, arm=103.2, world=world)
    line = line_of(tmp_path)
    ratio, width = there(line.to_target), 1.0 if world == "local" else math.exp(0.1008)
    assert ratio.same_trajectory
    assert ends(ratio) == pytest.approx((0.969 / width, 0.969 * width), abs=2e-3)
    other = there(ratio.other)
    assert other.low < ratio.low / 1.01 < 1.01 * ratio.high < other.high
    assert there(line.statistical).point == there(line.statistical).high == 1


def test_a_slow_run_on_the_baselines_own_trajectory_leaves_no_pairs(make_run: Make, tmp_path: Path):
    for strategy, slow in (("ddp", 1.0), ("hsgd", 3.0)):
        for seed in range(5):
            values, place = (0.5 + 0.01 * seed, 0.6, 0.7, 0.78), {"arm": strategy, "role": ""}
            make_run(tmp_path, strategy, seed, values, train_s=25 * (slow if seed == 4 else 1), place=place)
    line = line_of(tmp_path)
    assert [note.split(":")[0] for note in line.notes] == [f"{work} without slow runs" for work in WORK]
    assert there(line.to_target).estimate.counts == there(line.statistical).estimate.counts == (5, 4)


def test_another_trajectory_is_compared_by_means_and_pairs_stand_beside(make_run: Make, tmp_path: Path):
    virtual(make_run, tmp_path, like=False, arm=103.2)
    ratio = there(line_of(tmp_path).to_target)
    assert not ratio.same_trajectory
    assert there(ratio.other).low < ratio.point < there(ratio.other).high
    (row,) = speedup_rows([answered(tmp_path)])
    assert row["interval_kind"] == "Welch"
    assert (row["to_target_other_low"], row["to_target_other_high"]) == (
        there(ratio.other).low,
        there(ratio.other).high,
    )


# ------------------------------------------------------------------ the checks "noise" and "times"


def test_the_check_of_noise_says_which_gain_would_not_show(make_run: Make, tmp_path: Path):
    virtual(make_run, tmp_path, like=False)
    found = noise(answered(tmp_path))
    assert found.level == "green"
    assert found.sentence == (
        "a gain below 1.17× in the time of all work or 1.52× in the time to target would not show"
    )
    assert found.details == (
        "Noise floor of the time of all work: 1.7 %.",
        "Noise floor of the time to target: 1.7 %.",
    )


def test_the_check_of_noise_is_amber_without_second_baselines_and_with_a_bias(make_run: Make, tmp_path: Path):
    study(make_run, tmp_path / "none", clock=None, fresh=None)
    found = noise(answered(tmp_path / "none"))
    assert (found.level, found.details) == ("amber", ())
    assert found.sentence.startswith(
        "no noise floor of the time of all work: no second baseline with the same seeds or fresh seeds; "
        "no noise floor"
    )
    study(make_run, tmp_path / "biased", clock=(0.01, 0.03, 0.02, 0.02, 0.02))
    found = noise(answered(tmp_path / "biased"))
    assert found.level == "amber"
    assert found.sentence.startswith("time of all work: two runs with the same seeds differ by more than")


def test_the_check_of_times_says_what_each_interval_holds(make_run: Make, tmp_path: Path):
    virtual(make_run, tmp_path / "virtual", like=False)
    for seed in range(5):
        place = {"arm": "daso", "role": ""}
        make_run(tmp_path / "virtual", "daso", seed, train_s=12.5, place=place, world="simulated")
    found = valid_times(answered(tmp_path / "virtual"))
    assert (found.level, found.sentence) == (
        "amber",
        "times are simulated, and every interval holds the model error: half of all errors are below 1.7 %, "
        "95 % below 8.0 %",
    )
    assert found.details == (
        "daso: 22 validated pairs of daso itself; their mean error of +2.1% is taken off the ratio; typical "
        "error 1.6 %, 95 % below 6.5 %.",
        "hsgd: 62 validated pairs of all strategies; no bias is known at its ratio, so the interval carries "
        "the whole error; typical error 1.7 %, 95 % below 8.0 %.",
    )
    study(make_run, tmp_path / "local")
    found = valid_times(answered(tmp_path / "local"))
    assert (found.level, found.sentence) == ("green", "times were measured, not simulated")
