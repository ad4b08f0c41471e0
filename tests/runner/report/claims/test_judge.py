"""Verdicts from run directories: which arm answers which claim, and what keeps a verdict away."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from sharing import there
from test_speedups import ARM, BASE, Make, answered, claim_of, comparisons_of, runs_of, study

from daso_bench.runner.report import build
from daso_bench.runner.report.claims.claim_tables import fairness_rows
from daso_bench.runner.report.claims.judge import NO_ARM, JudgedClaim, judge
from daso_bench.runner.report.claims.paper_claims import Claim, StatedConditions, load
from daso_bench.runner.report.claims.speedups import Check, Forbidden
from daso_bench.runner.report.claims.study_checks import all_speedups
from daso_bench.runner.report.results import show_verdicts

FAST = tuple(value / 1.7 for value in BASE)


def of(root: Path, name: str) -> list[JudgedClaim]:
    """What the runs below `root` say of the claim `name`."""
    comparisons = comparisons_of(root)
    return judge([claim_of(name)], all_speedups(comparisons), comparisons)


def only(root: Path, name: str = "daso_time") -> JudgedClaim:
    (found,) = of(root, name)
    return found


def test_a_gain_in_all_its_conditions_reproduces_the_claim(make_run: Make, tmp_path: Path):
    study(make_run, tmp_path, arm=FAST, fresh=1.0, exposed=0.5)
    found = only(tmp_path)
    assert (found.arm, found.comparator) == ("daso", "ddp")
    assert found.verdict.word == "reproduced", found.verdict
    assert found.measured.startswith("1.700 [1.5")
    assert any("not stated" in reason for reason in found.verdict.reasons)


def test_of_another_metric_the_conditions_are_not_the_claims_own(make_run: Make, tmp_path: Path):
    """A paper's mIoU says what becomes of mIoU; accuracy of the same model is another workload."""
    study(make_run, tmp_path, arm=FAST, fresh=1.0, exposed=0.5)
    given = all_speedups(comparisons_of(tmp_path))
    here = StatedConditions(
        model=None, dataset=None, nodes=2, devices_per_node=2, device="of a test", network="of a test"
    )
    for metric, own in (("accuracy", True), ("miou", False)):
        (found,) = judge([claim_of("daso_time", metric=metric, conditions=here)], given)
        assert there(found.conditions).own_conditions is own


def test_a_loss_of_accuracy_takes_the_gain_away(make_run: Make, tmp_path: Path):
    study(make_run, tmp_path, arm=(), fresh=1.0, exposed=0.5)
    runs_of(make_run, tmp_path, "daso", FAST, (0.6, 0.7, 0.74, 0.76), exposed=0.5)
    assert "quality lost" in only(tmp_path).verdict.remarks


def test_a_verdict_on_time_to_target_rests_on_no_floor_of_runs_that_missed_it(make_run: Make, tmp_path: Path):
    study(make_run, tmp_path, fresh=1.0, fresh_missed=(1, 3))
    given = all_speedups(comparisons_of(tmp_path))
    (found,) = judge([claim_of("daso_time", headline="time_to_target")], given)
    assert found.verdict.word == "no verdict"
    assert "no noise floor: 2 of 5 runs of ddp fresh_seeds missed the target" in found.verdict.reasons
    assert not any("is missing" in reason for reason in found.verdict.reasons)


def test_an_unfair_comparison_gets_no_verdict_and_says_why(make_run: Make, tmp_path: Path):
    study(make_run, tmp_path, arm=(), fresh=1.0)
    runs_of(make_run, tmp_path, "daso", ARM, train={"global_batch_size": 128})
    found = only(tmp_path)
    assert found.verdict.word == "no verdict"
    assert found.verdict.reasons[0] == (
        "daso differs from ddp in 2 unequal things: other train.global_batch_size: 128 instead of 64; "
        "other samples of each rank in a step: 32 x 4 instead of 16 x 4"
    )
    rows = fairness_rows([answered(tmp_path)], [found])
    assert [row["arm"] for row in rows if row["forbids_a_verdict"]] == ["daso", "daso"]
    assert {row["arm"] for row in rows} == {"daso", "ddp same_seeds", "ddp fresh_seeds"}, "claimed or not"


def told(root: Path, name: str) -> str:
    """Why the runs below `root` were not compared for the claim `name`."""
    found = only(root, name)
    assert (found.comparison, found.verdict.word) == (None, "no verdict")
    (reason,) = found.verdict.reasons
    return reason


def test_a_claim_whose_arm_is_here_is_not_called_one_that_no_arm_is_about(make_run: Make, tmp_path: Path):
    study(make_run, tmp_path)
    assert told(tmp_path, "lasgd_time_gossip") == NO_ARM
    runs_of(make_run, tmp_path, "lasgd", (80,) * 5)
    assert told(tmp_path, "lasgd_time_gossip") == (
        "a ratio needs 3 runs each of lasgd, sgp and a baseline (ddp or study.baseline) in one comparison"
    )
    assert told(tmp_path, "hsgd_efficiency") == NO_ARM


def test_without_runs_enough_of_a_baseline_it_is_said_so(make_run: Make, tmp_path: Path):
    study(make_run, tmp_path, base=BASE[:2], clock=None, fresh=None)
    assert told(tmp_path, "daso_time").startswith("a ratio needs 3 runs each of daso, ddp and a baseline")


def test_another_comparator_than_the_baseline_is_taken_and_the_baseline_too(make_run: Make, tmp_path: Path):
    study(make_run, tmp_path, fresh=1.0)
    runs_of(make_run, tmp_path, "sgp", (120,) * 5)
    runs_of(make_run, tmp_path, "lasgd", (80,) * 5)
    found = of(tmp_path, "lasgd_time_gossip")
    assert [one.comparator for one in found] == ["sgp", "ddp"]
    assert found[0].measured.startswith("1.500 ")
    assert found[1].measured.startswith("1.248 ")


@pytest.mark.parametrize(
    ("last", "whole_s", "word", "world"),
    [
        (0.75, 100, "supported", "local"),
        (0.65, 100, "contradicted", "local"),
        # Its last evaluation, the best, comes after the time of the plain mean.
        (0.90, 103, "contradicted", "local"),
        # Both sides have one model error, which is wider than what is allowed.
        (0.75, 100, "supported", "simulated"),
    ],
)
def test_better_accuracy_at_equal_time(
    make_run: Make, tmp_path: Path, last: float, whole_s: float, word: str, world: str
):
    study(make_run, tmp_path, arm=(), fresh=1.0, base=(100, 101, 99, 100, 100), world=world)
    for seed in range(5):
        for name, weighting, final, time_s in (
            ("plain", "uniform", 0.70, 100),
            ("by samples", "samples", last, whole_s),
        ):
            make_run(
                tmp_path,
                "heterogeneous",
                seed,
                [value + 0.0005 * seed for value in (0.5, 0.6, 0.65, final)],
                train_s=time_s / 4,
                place={"arm": name, "role": ""},
                settings={"weighting": weighting},
                world=world,
            )
    found = only(tmp_path, "heterogeneous_accuracy")
    assert (found.arm, found.comparator) == ("by samples", "plain")
    assert found.verdict.word == word, found.verdict
    assert found.measured.startswith(f"{'+' if word == 'supported' else '-'}5.00 points")


def test_the_page_and_the_tables_tell_the_verdicts(
    make_run: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(build, "picture", lambda plot, output: replace(plot, failure="left out"))
    study(make_run, tmp_path / "in", arm=FAST, fresh=1.0, exposed=0.5)
    runs_of(make_run, tmp_path / "in", "lasgd", (80,) * 5)
    page = build.report(tmp_path / "in", tmp_path / "out").read_text()
    assert "Coquelin 2022 (daso)" in page
    assert "up to 1.515 times (34 % less time)" in page
    assert (tmp_path / "out" / "claims.csv").is_file()
    assert (tmp_path / "out" / "fairness.csv").is_file()
    assert "hsgd_efficiency" not in page, "no arm here is about it"
    assert "lasgd_time_gossip: a ratio needs 3 runs each of lasgd, sgp and" in page


def test_the_command_prints_every_claim(make_run: Make, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    study(make_run, tmp_path, arm=FAST, fresh=1.0)
    assert show_verdicts(tmp_path, None) == 0
    said = " ".join(capsys.readouterr().out.split())
    for claim in load():
        assert claim.id in said
    assert "noise (green): a gain below" in said


def judged_with(root: Path, claim: Claim | None = None, **check: Any) -> list[JudgedClaim]:
    """The verdicts on a claim, `daso_time`, where a check of the study says `check`."""
    (found,) = all_speedups(comparisons_of(root))
    said = Check(name="noise", level="amber", sentence="", **check)
    return judge([claim or claim_of("daso_time")], [replace(found, checks=(said,))])


@pytest.mark.parametrize("label", ["daso", "ddp", "ddp fresh_seeds"])
def test_whatever_a_check_forbids_gets_no_verdict_for_that_reason(make_run: Make, tmp_path: Path, label: str):
    study(make_run, tmp_path, arm=FAST, fresh=1.0, exposed=0.5)
    for forbidden_label, word in ((label, "no verdict"), ("hsgd", "reproduced")):
        forbidden = Forbidden(forbidden_label, "copied", f"{forbidden_label}: files were copied")
        (found,) = judged_with(tmp_path, forbids=(forbidden,))
        assert found.verdict.word == word
        assert (forbidden.sentence in found.verdict.reasons) is (word == "no verdict")


@pytest.mark.parametrize(
    ("spares", "changes", "judged"),
    [
        ("none", {}, []),
        ("efficiency", {}, []),
        ("efficiency", {"headline": "efficiency"}, ["sgp", "ddp"]),
        ("other comparators", {}, ["sgp"]),
        ("named comparators", {}, ["sgp"]),
    ],
)
def test_claims_that_a_check_spares_get_their_verdict(
    make_run: Make, tmp_path: Path, spares: Any, changes: dict[str, Any], judged: list[str]
):
    study(make_run, tmp_path, fresh=1.0)
    runs_of(make_run, tmp_path, "sgp", (120,) * 5)
    runs_of(make_run, tmp_path, "lasgd", (80,) * 5)
    claim, forbidden = claim_of("lasgd_time_gossip", **changes), Forbidden("ddp", "a", "b", spares=spares)
    verdicts = judged_with(tmp_path, claim, forbids=(forbidden,))
    assert [one.comparator for one in verdicts if one.verdict.word != "no verdict"] == judged


def test_verdicts_of_a_study_that_was_not_planned_are_exploratory(make_run: Make, tmp_path: Path):
    study(make_run, tmp_path, arm=FAST, fresh=1.0, exposed=0.5)
    (found,) = judged_with(tmp_path, exploratory="two seeds were added later")
    assert found.verdict.word == "reproduced"
    assert "exploratory" in found.verdict.remarks
    assert "exploratory: two seeds were added later" in found.verdict.reasons
