"""Verdicts on quality, alone, joined with time, and at one common time."""

import math
from dataclasses import replace
from typing import Any

import pytest
from sharing import there

from daso_bench.runner.report.statistics.noise_floor import NoiseFloor
from daso_bench.runner.report.statistics.quality import (
    at_equal_time,
    better,
    difference,
    join,
    last_up_to,
    no_loss,
)
from daso_bench.runner.report.statistics.several_arms import Family
from daso_bench.runner.report.statistics.verdict import Bound, Conditions, Hypothesis, Verdict
from daso_bench.runner.report.statistics.welch import Interval
from daso_bench.strategies.errors import ConfigError

CALM = 0.02
CLAIM, SOUND = Hypothesis(value=1.5), Conditions(runs=5, noise=NoiseFloor(clock=CALM, fresh=CALM))
SUPPORTED, LOST, OPEN = Interval(-0.3, 0.4), Interval(-1.2, -0.6), Interval(-0.7, 0.2)


@pytest.mark.parametrize(
    ("interval", "word"),
    [
        (SUPPORTED, "supported"),
        (LOST, "contradicted"),
        (OPEN, "inconclusive"),
        (Interval(-0.5, 0.4), "inconclusive"),
        (Interval(-0.9, -0.5), "inconclusive"),
        (Interval(-0.49, -0.1), "supported"),
        (None, "inconclusive"),
    ],
)
def test_no_loss_is_judged_against_the_margin(interval: Interval | None, word: str) -> None:
    assert no_loss(CLAIM, interval, SOUND).word == word


def test_the_margin_is_the_claim_s() -> None:
    assert no_loss(Hypothesis(quality_margin=0.2), SUPPORTED, SOUND).word == "inconclusive"
    assert no_loss(Hypothesis(quality_margin=1.3), LOST, SOUND).word == "supported"


@pytest.mark.parametrize(
    ("low", "high", "fresh", "word"),
    [
        (0.3, 0.9, 0.2, "supported"),
        (0.3, 0.9, -0.2, "supported"),
        (0.2, 0.9, 0.2, "inconclusive"),
        (0.1, 0.9, -0.2, "inconclusive"),
        (-0.9, -0.01, 0.2, "contradicted"),
        (-0.9, 0.0, 0.2, "inconclusive"),
        (0.01, 0.1, 0.0, "supported"),
        (0.01, 0.1, None, "no verdict"),
    ],
)
def test_better_is_judged_against_what_two_baselines_differ_by(
    low: float, high: float, fresh: float | None, word: str
) -> None:
    assert better(CLAIM, Interval(low, high), SOUND, fresh_difference=fresh).word == word


def test_a_diverged_run_leaves_quality_inconclusive_at_best() -> None:
    diverged = replace(SOUND, diverged=True)
    found = no_loss(CLAIM, SUPPORTED, diverged)
    assert (found.word, found.reasons) == ("inconclusive", ("a run of the arm diverged",))
    assert no_loss(CLAIM, LOST, diverged).word == "contradicted"
    assert better(CLAIM, Interval(1, 2), diverged, fresh_difference=0.1).word == "inconclusive"


@pytest.mark.parametrize(
    "bad", [{"runs": 4}, {"noise": NoiseFloor(clock=CALM, fresh=None)}, {"forbidden": ("weak baseline",)}]
)
def test_what_forbids_a_verdict_on_time_forbids_one_on_quality(bad: dict[str, Any]) -> None:
    assert no_loss(CLAIM, SUPPORTED, replace(SOUND, **bad)).word == "no verdict"


def test_what_communication_could_save_does_not_matter_for_quality_but_the_hardware_does() -> None:
    tight = replace(SOUND, bound=Bound(value=1.1))
    other = replace(SOUND, differs=("ranks",))
    assert no_loss(CLAIM, SUPPORTED, tight).word == "supported"
    assert no_loss(CLAIM, SUPPORTED, other).word == "not testable here"


def words(text: str, **more: object) -> Verdict:
    """The verdict `word, remark, remark`."""
    word, *remarks = text.split(", ")
    return Verdict(word=word, remarks=tuple(remarks), **more)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("time", "quality", "quantifier", "expected"),
    [
        ("reproduced, exceeded", "supported", "typical", "reproduced, exceeded"),
        ("reproduced, exceeded", "inconclusive", "typical", "inconclusive, quality open"),
        ("partly", "inconclusive", "typical", "inconclusive, quality open"),
        ("supported", "inconclusive", "typical", "inconclusive, quality open"),
        ("contradicted, a gain", "inconclusive", "typical", "contradicted, a gain"),
        ("smaller here", "inconclusive", "up_to", "smaller here"),
        ("inconclusive, a gain", "inconclusive", "typical", "inconclusive, a gain"),
        ("inconclusive (too noisy)", "inconclusive", "typical", "inconclusive (too noisy)"),
        ("partly", "contradicted", "up_to", "smaller here, quality lost"),
        ("supported", "contradicted", "typical", "contradicted, quality lost"),
        ("inconclusive", "contradicted", "typical", "contradicted, quality lost"),
        ("no verdict", "contradicted", "typical", "no verdict"),
        ("reproduced", "no verdict", "typical", "no verdict"),
        ("not testable here", "contradicted", "typical", "not testable here"),
        ("partly, provisional", "inconclusive", "typical", "inconclusive, quality open, provisional"),
        ("partly, provisional", "contradicted", "up_to", "smaller here, quality lost, provisional"),
    ],
)
def test_how_quality_changes_the_verdict_on_time(
    time: str, quality: str, quantifier: str, expected: str
) -> None:
    assert join(words(time), words(quality), quantifier=quantifier) == words(expected)


def test_a_join_tells_how_many_runs_decide_what_is_open() -> None:
    time, quality = words("inconclusive", smallest_n=20), words("inconclusive", smallest_n=30)
    assert join(time, quality, quantifier="typical").smallest_n == 30
    assert join(time, words("supported"), quantifier="typical").smallest_n == 20
    assert join(words("reproduced"), quality, quantifier="typical").smallest_n == 30
    assert join(time, words("inconclusive"), quantifier="typical").smallest_n is None


def test_the_difference_of_the_metric_is_arm_minus_baseline() -> None:
    found = there(difference([75.0, 75.4, 74.6, 75.2, 74.8], [74.0, 74.4, 73.6, 74.2, 73.8]))
    assert found.difference == pytest.approx(-1.0)
    # Both sd .31623, so the half-width is 2.306 · .2.
    assert (found.interval.low, found.interval.high) == pytest.approx((-1.4612, -0.5388), abs=1e-4)
    assert difference([75.0, 75.1], [74.0, 74.1, 74.2]) is None
    with pytest.raises(ConfigError, match="finite"):
        difference([75.0, 75.1, math.nan], [74.0, 74.1, 74.2])


def test_open_quality_is_told_the_smallest_number_of_runs() -> None:
    found = there(difference([75.0, 75.4, 74.6, 75.2, 74.8], [74.9, 75.3, 74.5, 75.1, 74.7]))
    family = Family(own=found)
    answer = no_loss(CLAIM, found.interval, SOUND, family=family)
    assert (answer.word, answer.smallest_n) == ("inconclusive", 44)
    diverged = replace(SOUND, diverged=True)
    assert no_loss(CLAIM, found.interval, diverged, family=family).smallest_n is None


def test_quality_at_one_time_uses_the_last_evaluation_by_then() -> None:
    for limit_s, expected in ((29.9, 0.6), (30.0, 0.7), (9.0, None)):
        assert last_up_to([(10.0, 0.5), (20.0, 0.6), (30.0, 0.7)], limit_s) == expected


@pytest.mark.parametrize(
    ("steps", "word"),
    [
        (Interval(0.96, 1.04), "supported"),
        (Interval(0.95, 1.05), "supported"),
        (Interval(0.94, 1.01), "no verdict"),
        (Interval(1.0, 1.051), "no verdict"),
        (None, "no verdict"),
    ],
)
def test_quality_at_one_time_needs_steps_of_equal_length(steps: Interval | None, word: str) -> None:
    claim = Hypothesis(headline="quality_at_time")
    found = better(claim, Interval(0.3, 0.9), at_equal_time(SOUND, steps), fresh_difference=0.2)
    assert found.word == word
    assert (word == "no verdict") == any("times per step" in reason for reason in found.reasons)
