"""Computing efficiency: what cores do together over what one does alone, with intervals and headroom."""

import json
import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from statistics import fmean, variance
from typing import Any

import pytest
from core_studies import ALONE, SPREADS, Core, Make, made, usual
from scipy.stats import t
from sharing import section_of, tables_of, there
from test_speedups import claim_of

from daso_bench.runner.report import build
from daso_bench.runner.report.claims.core_efficiency import (
    Matrix,
    efficiency_words,
    matrix,
)
from daso_bench.runner.report.claims.judge import JudgedClaim, judge
from daso_bench.runner.report.claims.paper_claims import Claim
from daso_bench.runner.report.claims.speedups import Speedups
from daso_bench.runner.report.claims.study_checks import all_speedups
from daso_bench.runner.report.data.arms import Comparison
from daso_bench.runner.report.data.means import TIME_SHARES
from daso_bench.runner.report.sections.efficiency import EfficiencySection


def found(make_run: Make, root: Path, arms: dict[str, Core]) -> Matrix:
    """The matrix of a study that has one."""
    return matrix_of(made(make_run, root, arms))


def matrix_of(comparison: Comparison) -> Matrix:
    efficiencies = matrix(comparison)
    assert isinstance(efficiencies, Matrix)
    return efficiencies


def mean(values: Sequence[float]) -> float:
    return math.exp(fmean(map(math.log, values)))


def welch(arm: Sequence[float], level: float) -> float:
    """Half of the interval's width in ln of a rate with these factors over one core's."""
    parts = [variance([math.log(value) for value in side]) / len(side) for side in (arm, ALONE)]
    df = sum(parts) ** 2 / sum(part**2 / 4 for part in parts)
    return float(t.ppf(0.5 + level / 2, df)) * math.sqrt(sum(parts))


@pytest.mark.parametrize("level", [0.95, 0.8])
def test_efficiency_is_the_rate_over_cores_times_that_of_one_alone(
    make_run: Make, tmp_path: Path, level: float
):
    arms = {name: replace(core, place={"level": level}) for name, core in usual().items()}
    one = found(make_run, tmp_path, arms)
    assert (one.cores, one.level) == (4, level)
    assert one.alone == pytest.approx(100 * mean(ALONE)), "geometric means, of rates that are skewed"
    by_arm = {line.arm.label: line for line in one.lines}
    assert set(by_arm) == {"native", "hsgd"}, "second baselines, and the core that is alone, are no arms"
    for name, rate in (("native", 1.2), ("hsgd", 3.6)):
        value, half = rate * mean(SPREADS[name]) / mean(ALONE) / 4, welch(SPREADS[name], level)
        assert by_arm[name].value == pytest.approx(value)
        ends = there(by_arm[name].interval)
        assert (ends.low, ends.high) == pytest.approx((value * math.exp(-half), value * math.exp(half)))
        assert by_arm[name].headroom == pytest.approx(max(1, 1 / value))
        assert by_arm[name].headroom_limit == pytest.approx(1 / ends.low)
    assert efficiency_words(by_arm["native"]).startswith(f"{100 * by_arm['native'].value:.1f} % [")
    assert f"native gets {one.baseline.value:.1%} of what 4 cores could do" in one.sentence
    room, most = one.baseline.headroom, one.baseline.headroom_limit
    assert f"more than {room:.3g} times as fast (at most {most:.3g})" in one.sentence


def test_a_slow_run_is_no_typical_run(make_run: Make, tmp_path: Path):
    arms = usual()
    arms["hsgd"] = replace(arms["hsgd"], spread=(1.00, 1.01, 0.20, 0.99, 1.00))
    line = found(make_run, tmp_path, arms).lines[-1]
    assert line.arm.label == "hsgd"
    assert line.interval.low < line.value < line.interval.high
    assert line.value == pytest.approx(0.9 * mean((1.00, 1.01, 0.99, 1.00)) / mean(ALONE))


def test_shares_say_where_training_time_went(make_run: Make, tmp_path: Path):
    one = found(make_run, tmp_path, usual())
    shares = there(one.lines[0].shares)
    assert list(shares) == list(TIME_SHARES)
    assert shares["blocked on intra"] == pytest.approx(0.2)
    assert shares["blocked on inter"] == pytest.approx(0.1)
    assert sum(shares.values()) == pytest.approx(1.0)
    (row, *_) = tables_of(EfficiencySection, [one.comparison])["efficiency"]
    assert row["share_blocked_on_inter"] == pytest.approx(0.1)
    assert row["efficiency_low"] < row["efficiency"] < row["efficiency_high"]


def without_cores(seed: int, config: Any, environment: dict[str, Any], summary: Any) -> None:
    """The run of seed 2 did not record the cores of its rank."""
    if seed == 2:
        environment["ranks"][0].pop("cores")


def with_rank(key: str, value: str) -> Any:
    """Every run has this in the record of its rank."""
    return lambda seed, config, environment, summary: environment["ranks"][0].update({key: value})


NOT_EQUAL = "one core is no core of native's: not equal: "


@pytest.mark.parametrize(
    ("name", "changes", "why"),
    [
        ("native", None, "no baseline (study.baseline)"),
        ("one core", None, "0 arms of one core (study.role=one_core), must be 1"),
        ("native", {"spread": (1.0,)}, "native: fewer than 3 complete runs"),
        ("one core", {"spread": (1.0,)}, "one core: fewer than 3 complete runs"),
        ("native", {"edit": without_cores}, "native: its cores are not recorded, or not the same in all"),
        ("one core", {"batch": 1}, f"{NOT_EQUAL}batch of a core: 1 instead of 64 / 4"),
        ("one core", {"batch": 17}, f"{NOT_EQUAL}batch of a core: 17 instead of 64 / 4"),
        ("one core", {"more": {"train": {"global_batch_size": 16, "precision": "bf16"}}}, "precision: bf16"),
        ("one core", {"edit": with_rank("host", "b")}, "other nodes: b"),
        ("one core", {"edit": with_rank("device_model", "slow")}, "slow instead of fast"),
        (
            "other core",
            {"rate": 300.0, "more": {"train": {"global_batch_size": 16, "epochs": 3}}},
            "2 arms of one core",
        ),
    ],
)
def test_why_there_is_no_matrix(
    make_run: Make, tmp_path: Path, name: str, changes: dict[str, Any] | None, why: str
):
    arms = usual()
    if changes is None:
        del arms[name]
    else:
        arms[name] = replace(arms.get(name, arms["one core"]), **changes)
    comparison = made(make_run, tmp_path, arms)
    reason = matrix(comparison)
    assert isinstance(reason, str)
    assert why in reason
    asked = "one core" in arms
    assert section_of(EfficiencySection, [comparison]).made == [(comparison, reason)] * asked


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"spread": (1.0,)}, "fewer than 3 complete runs"),
        ({"cores": (0, 1)}, "2 cores, the baseline 4"),
        ({"edit": without_cores}, "its cores are not recorded, or not the same in all runs"),
    ],
)
def test_why_an_arm_is_not_in_the_matrix(make_run: Make, tmp_path: Path, changes: dict[str, Any], why: str):
    arms = usual()
    arms["hsgd"] = replace(arms["hsgd"], **changes)
    one = found(make_run, tmp_path, arms)
    assert (one.cores, one.left_out) == (4, (f"hsgd ({why})",))
    assert f"Not in the matrix: hsgd ({why})." in one.sentence


@pytest.mark.parametrize(
    "status", [{"status": "timed_out"}, {"timing": {"valid": False, "reasons": ["its links were slower"]}}]
)
def test_runs_that_did_not_do_their_work_or_do_not_count_are_left_out(
    make_run: Make, tmp_path: Path, status: dict[str, Any]
):
    """Each arm has a sixth run, fifty times as fast; those of a modelled network may fail its checks."""

    def shaped(seed: int, config: Any, environment: Any, summary: dict[str, Any]) -> None:
        summary["validity"] = {"network": "modelled"}

    arms = {name: replace(core, edit=shaped, spread=(*core.spread, 50.0)) for name, core in usual().items()}
    made(make_run, tmp_path, arms)
    for path in tmp_path.glob("quick/*-s5-*/status.json"):
        path.write_text(json.dumps(json.loads(path.read_text()) | status))
    one = matrix_of(made(make_run, tmp_path, {}))
    assert one.alone == pytest.approx(100 * mean(ALONE))
    assert [line.samples_per_s for line in one.lines] == [
        pytest.approx(120 * mean(SPREADS["native"])),
        pytest.approx(360 * mean(SPREADS["hsgd"])),
    ]


def test_cores_that_bound_ranks_leave_idle_count_too(make_run: Make, tmp_path: Path):
    """Three ranks on a core each of four; native bound to one of them is not native."""

    def bound(seed: int, config: Any, environment: dict[str, Any], summary: Any) -> None:
        for rank, row in enumerate(environment["ranks"]):
            row["cores"] = [rank] if row["threads"] == 1 else [0, 1, 2, 3]

    pinned = {
        name: replace(core, edit=bound, more={"launcher": {"pin": True}}) for name, core in usual().items()
    }
    pinned["hsgd"] = replace(pinned["hsgd"], ranks=3)
    one = found(make_run, tmp_path / "three", pinned)
    assert (one.cores, one.left_out) == (4, ())
    pinned |= {name: replace(core, threads=1) for name, core in pinned.items() if "native" in name}
    (judged,) = verdicts(answered(made(make_run, tmp_path / "one", pinned)), times_as_efficient(3))
    assert any("native is not native: 1 thread on 4 cores" in reason for reason in judged.verdict.reasons)


def test_a_containers_quota_is_what_its_ranks_may_use(make_run: Make, tmp_path: Path):
    def quota(seed: int, config: Any, environment: dict[str, Any], summary: Any) -> None:
        environment["cores"] = 2

    arms = {name: replace(core, edit=quota, threads=2) for name, core in usual().items()}
    arms["hsgd"] = replace(arms["hsgd"], ranks=2, threads=1)
    arms["one core"] = replace(arms["one core"], batch=32, threads=1)
    one = found(make_run, tmp_path, arms)
    assert one.cores == 2
    assert one.baseline.value == pytest.approx(0.6 * mean(SPREADS["native"]) / mean(ALONE))


def test_where_an_arm_does_more_than_all_cores_no_headroom_is_told(make_run: Make, tmp_path: Path):
    comparison = made(make_run, tmp_path, usual(hsgd=720.0))
    one = matrix_of(comparison)
    assert one.sentence.startswith("hsgd gets 18")
    assert "what is left to be gained is not known" in one.sentence
    assert "nothing on these cores" not in one.sentence
    (judged,) = verdicts(answered(comparison), times_as_efficient(20))
    assert there(judged.conditions).bound.value == 4, "no use of four cores is faster than four"
    assert any(reason.startswith("headroom not known: hsgd gets 18") for reason in judged.verdict.reasons)


def times_as_efficient(value: float) -> Claim:
    """HSGD's claim, with another number."""
    return claim_of("hsgd_efficiency", value=value)


def answered(comparison: Comparison) -> Speedups:
    (found,) = all_speedups([comparison])
    return found


def verdicts(given: Speedups, claim: Claim) -> list[JudgedClaim]:
    return [one for one in judge([claim], [given]) if one.comparison is not None]


STEADY = {name: replace(core, spread=ALONE) for name, core in usual().items()}


@pytest.mark.parametrize(("value", "word"), [(20.0, "not testable here"), (3.0, "reproduced")])
def test_a_claim_of_efficiency_is_held_against_the_headroom_and_not_against_communication(
    make_run: Make, tmp_path: Path, value: float, word: str
):
    comparison = made(make_run, tmp_path, STEADY)
    given = answered(comparison)
    assert there(given.bound.value) < 2, "communication alone would leave less than was gained"
    (judged,) = verdicts(given, times_as_efficient(value))
    assert judged.comparator == "native"
    assert judged.verdict.word == word, judged.verdict.reasons
    one = matrix_of(comparison)
    bound = there(judged.conditions).bound
    assert (bound.value, bound.limit) == (pytest.approx(1 / 0.3), one.baseline.headroom_limit)
    assert bound.unknown == ""
    if word == "not testable here":
        told = "not even all cores at work, each as fast as one alone, can exceed 3.33 here"
        assert any(told in reason for reason in judged.verdict.reasons)


@pytest.mark.parametrize("missing", [("one core",), ()])
def test_without_the_core_alone_a_claim_is_held_against_the_number_of_cores(
    make_run: Make, tmp_path: Path, missing: tuple[str, ...]
):
    arms = {name: core for name, core in STEADY.items() if name not in missing}
    if not missing:
        arms["one core"] = replace(arms["one core"], spread=(1.0,))
    given = answered(made(make_run, tmp_path, arms))
    why = "0 arms of one core (study.role=one_core)" if missing else "one core: fewer than 3 complete runs"
    for value, word in ((20.0, "not testable here"), (3.0, "reproduced")):
        (judged,) = verdicts(given, times_as_efficient(value))
        assert judged.verdict.word == word, judged.verdict.reasons
        assert any(reason.startswith(f"headroom not known: {why}") for reason in judged.verdict.reasons)
        assert not any("communication" in reason for reason in judged.verdict.reasons)
        bound = there(judged.conditions).bound
        assert (bound.value, bound.limit) == (4, None)


def test_the_headroom_is_that_of_the_arm_it_is_held_against(make_run: Make, tmp_path: Path):
    """The baseline is another ddp; the claim names native, and is held against both."""
    arms = {name: replace(core, place={"baseline": "ddp flat"}) for name, core in STEADY.items()}
    for role in ("", "same_seeds", "fresh_seeds"):
        name = f"ddp flat, {role}" if role else "ddp flat"
        arms[name] = replace(arms["native"], rate=200.0, role=role, ranks=4, threads=1)
    arms = {name: core for name, core in arms.items() if name not in ("native, clock", "native, fresh")}
    judged = verdicts(answered(made(make_run, tmp_path, arms)), times_as_efficient(1.8))
    assert [(one.comparator, one.conditions and one.conditions.bound.value) for one in judged] == [
        ("native", pytest.approx(1 / 0.3)),
        ("ddp flat", pytest.approx(2)),
    ]


def test_a_faster_flat_ddp_takes_no_verdict_from_a_claim_that_names_native(make_run: Make, tmp_path: Path):
    def faster(seed: int, config: Any, environment: Any, summary: dict[str, Any]) -> None:
        summary["train_s"] /= 2

    arms = dict(STEADY)
    arms["ddp flat"] = replace(arms["native"], rate=240.0, ranks=4, threads=1, edit=faster)
    given = answered(made(make_run, tmp_path, arms))
    assert list(given.faster) == ["ddp flat"]
    judged = {one.comparator: one for one in verdicts(given, times_as_efficient(3))}
    assert judged["native"].verdict.word == "reproduced", judged["native"].verdict.reasons
    assert judged["ddp flat"].measured.startswith("1.5")
    (other,) = verdicts(given, claim_of("hsgd_efficiency", value=3.0, comparator="ddp"))
    assert other.verdict.word == "no verdict"
    assert any(reason.startswith("wrong baseline: ddp flat") for reason in other.verdict.reasons)


@pytest.mark.parametrize(("native", "forbidden"), [(14.3, True), (97.0, True), (98.5, False)])
def test_a_baseline_that_is_slower_than_one_of_its_cores_gives_no_verdict(
    make_run: Make, tmp_path: Path, native: float, forbidden: bool
):
    """Its cores cannot be more than four times as fast as it, but by the noise of the study, 2 %."""

    def slower(seed: int, config: Any, environment: Any, summary: dict[str, Any]) -> None:
        summary["train_s"] *= 1.02

    arms = {name: replace(core, rate=native) if "native" in name else core for name, core in STEADY.items()}
    arms["native, fresh"] = replace(arms["native, fresh"], edit=slower)
    comparison = made(make_run, tmp_path, arms)
    (judged,) = verdicts(answered(comparison), times_as_efficient(20))
    told = "native on 4 cores is slower than one core alone"
    assert any(reason.startswith(told) for reason in judged.verdict.reasons) is forbidden
    assert (judged.verdict.word == "no verdict") is forbidden, judged.verdict.reasons
    one = matrix_of(comparison)
    assert ("it is slower than one of them" in one.sentence) is (native < 90), "without any doubt"
    assert ("nothing on these cores" in one.sentence) is (native > 90)


@pytest.mark.parametrize(
    ("change", "workers", "said"),
    [
        ({"threads": 1}, 0, "native is not native: 1 thread on 4 cores"),
        ({"threads": 3}, 0, "native is not native: 3 threads on 4 cores"),
        ({"ranks": 4, "threads": 1}, 0, "native is not native: ddp, 4 processes a node"),
        ({"strategy": "lasgd"}, 0, "native is not native: lasgd, 1 processes a node"),
        ({}, 0, ""),
        ({"threads": 3}, 1, ""),
    ],
)
def test_native_is_one_process_of_all_cores_but_those_of_loaders_workers(
    make_run: Make, tmp_path: Path, change: Any, workers: int, said: str
):
    more = {"launcher": {"loader_workers": workers}} if workers else {}
    arms = {name: replace(core, more=more) for name, core in STEADY.items()}
    arms = {name: replace(core, **change) if "native" in name else core for name, core in arms.items()}
    (judged,) = verdicts(answered(made(make_run, tmp_path, arms)), times_as_efficient(3))
    told = [reason for reason in judged.verdict.reasons if "is not native" in reason]
    assert [reason.startswith(said) for reason in told] == [True] * bool(said), judged.verdict.reasons
    assert (judged.verdict.word == "no verdict") is bool(said)


@pytest.mark.usefixtures("undrawn")
def test_the_page_has_the_matrix_and_its_table(make_run: Make, tmp_path: Path):
    made(make_run, tmp_path, STEADY)
    page = build.report(tmp_path, tmp_path / "out").read_text()
    assert "Computing efficiency" in page
    assert "native gets 30.0% of what 4 cores could do" in page
    table = (tmp_path / "out" / "efficiency.csv").read_text().splitlines()
    assert len(table) == 3
    assert "study.role=one_core" not in page[: page.index("Every run (")], "it is no arm"
    assert "one core" in (tmp_path / "out" / "runs.csv").read_text()
