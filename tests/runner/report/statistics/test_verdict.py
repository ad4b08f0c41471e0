"""Verdicts on one configuration: the rules' table, hand-made cases, edges, and a search over all inputs."""

import math
from dataclasses import replace
from typing import Any, get_args

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sharing import there
from simulated_studies import wrong

from daso_bench.runner.report.statistics import verdict
from daso_bench.runner.report.statistics.noise_floor import NoiseFloor
from daso_bench.runner.report.statistics.several_arms import Family
from daso_bench.runner.report.statistics.verdict import (
    Bound,
    Conditions,
    Hypothesis,
    Word,
    bands,
    number_rule,
    ratio_verdict,
)
from daso_bench.runner.report.statistics.welch import Interval, Ratio, Times, welch

CLAIM, UP_TO, DIRECTION = Hypothesis(value=1.5), Hypothesis(value=1.5, quantifier="up_to"), Hypothesis()
EXCEEDED, GAIN = ("exceeded",), ("a gain",)
REPRODUCED, CONTRADICTED, PARTLY, SMALLER = "reproduced", "contradicted", "partly", "smaller here"
INCONCLUSIVE, NOISY, SUPPORTED = "inconclusive", "inconclusive (too noisy)", "supported"


def conditions(floor: float = 0.02, *, biased: bool = False, **more: Any) -> Conditions:
    """Of five runs, with m_clock `floor`; `bound` as a number."""
    noise = NoiseFloor(clock=floor, fresh=0.0, biased=biased)
    if not isinstance(more.get("bound", Bound()), Bound):
        more["bound"] = Bound(value=more["bound"])
    return Conditions(**({"runs": 5, "noise": noise} | more))


def judged(claim: Hypothesis, low: float, high: float, floor: float = 0.02) -> tuple[str, tuple[str, ...]]:
    found = ratio_verdict(claim, Interval(low, high), conditions(floor))
    assert found.reasons == ()
    return found.word, found.remarks


# c = 1.5: a, b, d = 1.25, 1.375, 1.625.
RULES = [
    (1.42, 1.58, 0.02, REPRODUCED, ()),
    (1.65, 1.75, 0.02, REPRODUCED, EXCEEDED),
    (1.30, 1.40, 0.02, PARTLY, ()),
    (1.10, 1.20, 0.02, CONTRADICTED, GAIN),
    (1.05, 1.24, 0.06, CONTRADICTED, ()),
    (1.30, 1.55, 0.02, INCONCLUSIVE, GAIN),
    (1.375, 1.50, 0.02, INCONCLUSIVE, GAIN),
    (0.95, 1.60, 0.02, INCONCLUSIVE, ()),
    (1.01, 1.55, 0.02, INCONCLUSIVE, ()),
    (1.42, 1.58, 0.25, NOISY, ()),
    # Worked from the table of rules by hand, edges first.
    (1.3750001, 9.0, 0.02, REPRODUCED, ()),  # l > b, however wide
    (1.625, 1.70, 0.02, REPRODUCED, ()),  # l = d has not exceeded
    (1.6250001, 1.70, 0.02, REPRODUCED, EXCEEDED),
    (1.38, math.inf, 0.02, REPRODUCED, ()),  # printed "≥"
    (1.70, math.inf, 0.02, REPRODUCED, EXCEEDED),
    (1.375, 1.375, 0.02, PARTLY, ()),  # l = b is not above it
    (1.25, 1.25, 0.02, PARTLY, ()),  # u = a is not below it
    (1.0200001, 1.49, 0.02, PARTLY, ()),  # l just above 1 + m
    (1.02, 1.49, 0.02, INCONCLUSIVE, ()),  # l = 1 + m is no gain
    (1.20, 1.50, 0.02, INCONCLUSIVE, GAIN),  # u = c is not below it
    (1.20, 1.30, 0.21, INCONCLUSIVE, ()),  # the floor hides the gain
    (1.22, 1.30, 0.21, PARTLY, ()),
    (1.30, 1.40, 0.249, PARTLY, ()),
    (0.50, 0.60, 0.25, NOISY, ()),  # rule 2 comes first
    (0.50, 0.60, 0.02, CONTRADICTED, ()),  # slower
    (0.00, 1.24, 0.02, CONTRADICTED, ()),  # printed "≤"
    (0.00, 1.25, 0.02, INCONCLUSIVE, ()),
    (1.02, 1.249, 0.02, CONTRADICTED, ()),
    (1.00, 1.2499999, 0.02, CONTRADICTED, ()),
    (1.03, math.inf, 0.02, INCONCLUSIVE, GAIN),
    (1.001, 1.2, 0.0, CONTRADICTED, GAIN),  # no floor at all
    (1.00, 1.3, 0.0, INCONCLUSIVE, ()),
]


@pytest.mark.parametrize(("low", "high", "floor", "word", "remarks"), RULES)
def test_the_first_rule_that_holds_decides(
    low: float, high: float, floor: float, word: str, remarks: tuple[str, ...]
) -> None:
    """For "up to" a smaller gain is "smaller here", and all else the same."""
    assert judged(CLAIM, low, high, floor) == (word, remarks)
    assert judged(UP_TO, low, high, floor) == (SMALLER if word == CONTRADICTED else word, remarks)


@pytest.mark.parametrize(
    ("low", "high", "word"),
    [
        (1.03, 1.2, SUPPORTED),
        (1.01, 1.2, INCONCLUSIVE),
        (0.8, 0.99, CONTRADICTED),
        (1.02, 1.2, INCONCLUSIVE),
        (0.8, 1.0, INCONCLUSIVE),
    ],
)
def test_a_direction_is_supported_above_the_floor_and_contradicted_below_1(
    low: float, high: float, word: str
) -> None:
    assert judged(DIRECTION, low, high) == (word, ())


@pytest.mark.parametrize(
    ("more", "headline", "reason"),
    [
        ({"runs": 4}, "fixed_work", "4 runs per arm"),
        ({"noise": NoiseFloor(clock=0.0)}, "fixed_work", "no second baseline with fresh seeds"),
        ({"noise": NoiseFloor(fresh=0.0)}, "fixed_work", "no second baseline with the same seeds"),
        ({"evaluations": 19}, "time_to_target", "before the crossing: 19, must be 20"),
        ({}, "time_to_target", "not counted"),
        ({"forbidden": ("weak baseline",)}, "fixed_work", "weak baseline"),
        ({"forbidden": ("wrong baseline",)}, "efficiency", "wrong baseline"),
    ],
)
def test_what_forbids_a_verdict_forbids_it_before_any_rule(
    more: dict[str, object], headline: str, reason: str
) -> None:
    for claim in (CLAIM, UP_TO, DIRECTION):
        for bound in (None, 1.01):
            known = conditions(**(more | {"bound": bound}))  # type: ignore[arg-type]
            found = ratio_verdict(replace(claim, headline=headline), Interval(1.42, 1.58), known)
            assert (found.word, found.remarks, len(found.reasons)) == ("no verdict", (), 1)
            assert reason in found.reasons[0]


def test_all_reasons_for_no_verdict_are_listed() -> None:
    missing = conditions(
        runs=3, noise=NoiseFloor(clock=None, fresh=None), evaluations=2, forbidden=("weak baseline",)
    )
    found = ratio_verdict(Hypothesis(headline="time_to_target"), Interval(1.42, 1.58), missing)
    assert len(found.reasons) == 5


def test_evaluations_matter_for_the_time_to_a_target_only() -> None:
    for claim, counted in ((replace(CLAIM, headline="time_to_target"), 20), (CLAIM, 2)):
        found = ratio_verdict(claim, Interval(1.42, 1.58), conditions(evaluations=counted))
        assert found.word == REPRODUCED


@pytest.mark.parametrize("claim", [CLAIM, UP_TO])
def test_a_bound_below_the_claim_makes_it_not_testable_unless_the_conditions_are_its_own(
    claim: Hypothesis,
) -> None:
    found = ratio_verdict(claim, Interval(1.1, 1.2), conditions(bound=1.4))
    assert found.word == "not testable here"
    assert "no communication saving can exceed 1.4 here, the claim is 1.5" in found.reasons
    assert ratio_verdict(claim, Interval(1.1, 1.2), conditions(bound=1.5)).word != "not testable here"
    assert ratio_verdict(claim, Interval(1.1, 1.2), conditions(bound=1.4, own_conditions=True)).word in (
        CONTRADICTED,
        SMALLER,
    )


@pytest.mark.parametrize("claim", [CLAIM, UP_TO, DIRECTION])
def test_other_hardware_makes_a_claim_not_testable(claim: Hypothesis) -> None:
    found = ratio_verdict(claim, Interval(1.42, 1.58), conditions(differs=("ranks 256, here 8",)))
    assert (found.word, found.reasons) == (
        "not testable here",
        ("differs from the claim's: ranks 256, here 8",),
    )


def test_what_decides_nothing_is_printed_or_ignored() -> None:
    silent = ratio_verdict(CLAIM, Interval(1.42, 1.58), conditions(not_stated=("network",)))
    assert (silent.word, silent.reasons) == (REPRODUCED, ("not stated: network",))
    assert ratio_verdict(DIRECTION, Interval(1.03, 1.2), conditions(bound=1.01)).word == SUPPORTED


def test_in_its_own_conditions_an_upper_limit_of_the_bound_below_half_the_gain_contradicts_up_to() -> None:
    own = conditions(own_conditions=True, bound=Bound(value=1.2, limit=1.249))
    assert ratio_verdict(UP_TO, Interval(1.1, 1.3), own).word == CONTRADICTED
    assert ratio_verdict(UP_TO, Interval(1.1, 1.2), own).word == CONTRADICTED
    assert ratio_verdict(CLAIM, Interval(1.1, 1.3), own).word == PARTLY
    higher = conditions(own_conditions=True, bound=Bound(limit=1.25))
    assert ratio_verdict(UP_TO, Interval(1.1, 1.3), higher).word == PARTLY
    assert ratio_verdict(UP_TO, Interval(1.1, 1.3), conditions(bound=Bound(limit=1.2))).word == PARTLY
    # The rule that holds first decides.
    assert ratio_verdict(UP_TO, Interval(1.4, 1.5), own).word == REPRODUCED


def test_order_bias_makes_every_verdict_provisional() -> None:
    found = ratio_verdict(CLAIM, Interval(1.65, 1.75), conditions(biased=True))
    assert found.remarks == ("exceeded", "provisional")
    assert ratio_verdict(DIRECTION, Interval(1.0, 1.2), conditions(biased=True)).remarks == ("provisional",)


def test_without_a_ratio_neither_end_is_known() -> None:
    for claim in (CLAIM, UP_TO, DIRECTION):
        found = ratio_verdict(claim, None, conditions())
        assert found.word == INCONCLUSIVE
        assert found.reasons == ("no ratio: too many runs missed the target",)


def spread_ratio(ratio: float, sd: float, runs: int = 5) -> Ratio:
    """A study whose ratio and sample standard deviation of ln T are exactly these."""
    steps = [sd * math.sqrt((runs - 1) / 2) * sign for sign in (-1, 1)] + [0.0] * (runs - 2)
    arm = Times(tuple(math.exp(step) for step in steps))
    return there(welch(Times(tuple(ratio * time for time in arm.seconds)), arm))


@pytest.mark.parametrize(
    ("claim", "gain", "sd", "word", "needed"),
    [
        (CLAIM, 1.5, 0.10, INCONCLUSIVE, 30),
        (CLAIM, 1.5, 1.00, INCONCLUSIVE, None),
        (DIRECTION, 1.15, 0.10, INCONCLUSIVE, 56),
        # Less than the noise floor: more runs never decide.
        (DIRECTION, 1.01, 0.05, INCONCLUSIVE, None),
        (CLAIM, 1.5, 0.01, REPRODUCED, None),
    ],
)
def test_an_undecided_study_gets_the_smallest_number_of_runs_that_decides(
    claim: Hypothesis, gain: float, sd: float, word: str, needed: int | None
) -> None:
    ratio = spread_ratio(gain, sd)
    found = ratio_verdict(claim, ratio.interval, conditions(), family=Family(own=ratio))
    assert (found.word, found.smallest_n) == (word, needed)


def test_one_of_seven_arms_needs_stronger_numbers_for_a_gain_and_for_a_loss() -> None:
    """Alone the one-sided p is about 0.01; with six arms of which nothing is true it is 0.07."""
    for claim, edge, factor, alone, remark in (
        (DIRECTION, 1.0, 1.10, SUPPORTED, "not after correction"),
        (DIRECTION, 1.0, 1 / 1.10, CONTRADICTED, "loss not after correction"),
        (UP_TO, 1.25, 1 / 1.10, SMALLER, "loss not after correction"),
    ):
        ratio, equal = spread_ratio(edge * factor, 0.05), [spread_ratio(edge, 0.05)] * 6
        words = [
            ratio_verdict(claim, ratio.interval, conditions(), family=Family(own=ratio, others=others))
            for others in ([], equal)
        ]
        assert [found.word for found in words] == [alone, INCONCLUSIVE], claim
        assert [remark in found.remarks for found in words] == [False, True]


def test_what_the_bound_contradicts_needs_no_correction() -> None:
    ratio = spread_ratio(1.2, 0.10)
    tight = conditions(bound=Bound(value=1.2, limit=1.22), own_conditions=True)
    others = [spread_ratio(1.0, 0.10) for _ in range(6)]
    found = ratio_verdict(UP_TO, ratio.interval, tight, family=Family(own=ratio, others=others))
    assert found.word == CONTRADICTED


numbers = st.floats(0.0, 4.0) | st.sampled_from([0.0, 1.0, 1.02, 1.25, 1.375, 1.5, 1.625, math.inf])
floors = st.none() | st.floats(0.0, 0.6)
bounds = st.none() | st.floats(1.0, 3.0)
WORDS = set(get_args(Word))


@given(
    ends=st.none() | st.tuples(numbers, numbers),
    value=st.none() | st.floats(1.001, 3.0) | st.just(1.5),
    quantifier=st.sampled_from(["typical", "up_to"]),
    headline=st.sampled_from(["fixed_work", "time_to_target", "efficiency"]),
    given_conditions=st.builds(
        Conditions,
        runs=st.integers(0, 12),
        noise=st.builds(NoiseFloor, clock=floors, fresh=floors, biased=st.booleans()),
        evaluations=st.none() | st.integers(0, 60),
        bound=st.builds(Bound, value=bounds, limit=bounds),
        own_conditions=st.booleans(),
        differs=st.sampled_from([(), ("ranks",)]),
        forbidden=st.sampled_from([(), (), ("weak baseline",)]),
    ),
)
def test_every_input_gets_exactly_one_verdict(
    ends: tuple[float, float] | None,
    value: float | None,
    quantifier: str,
    headline: str,
    given_conditions: Conditions,
) -> None:
    interval = None if ends is None else Interval(min(ends), max(ends))
    claim = Hypothesis(value=value, quantifier=quantifier, headline=headline)
    found = ratio_verdict(claim, interval, given_conditions)
    assert found.word in WORDS
    assert (found.word == "no verdict") == bool(
        given_conditions.runs < 5
        or given_conditions.noise.floor is None
        or (headline == "time_to_target" and (given_conditions.evaluations or 0) < 20)
        or given_conditions.forbidden
    )
    assert found.word != SUPPORTED or value is None
    assert found.word != SMALLER or quantifier == "up_to"


def test_the_bands_of_a_claim_of_half_as_fast_again() -> None:
    assert bands(1.5) == (1.25, 1.375, 1.625)
    assert bands(1.515) == pytest.approx((1.258, 1.386, 1.644), abs=1e-3)


def test_arrays_of_studies_get_the_rules_that_single_ones_get() -> None:
    rng = np.random.default_rng(0)
    low, high = np.sort(rng.uniform(0.8, 1.8, (500, 2)), axis=1).T
    floors = rng.uniform(0, 0.3, 500)
    together = number_rule(low, high, floors, 1.5).tolist()
    assert together == [int(number_rule(*study, 1.5)) for study in zip(low, high, floors, strict=True)]
    assert set(together) == {2, 3, 4, 5, 6}


@pytest.mark.parametrize(
    ("rule", "low", "gain", "false"),
    [
        (verdict.REPRODUCED, 1.4, 1.375, False),
        (verdict.REPRODUCED, 1.4, 1.37, True),
        (verdict.REPRODUCED, 1.63, 1.63, False),
        (verdict.REPRODUCED, 1.63, 1.625, True),  # "exceeded" says more than d
        (verdict.CONTRADICTED, 0.9, 1.249, False),
        (verdict.CONTRADICTED, 0.9, 1.25, True),
        (verdict.CONTRADICTED, 1.1, 1.0, True),  # "a gain"
        (verdict.PARTLY, 1.1, 1.5, True),
        (verdict.PARTLY, 1.1, 1.0, True),
        (verdict.INCONCLUSIVE, 1.1, 1.0, True),
        (verdict.INCONCLUSIVE, 0.9, 1.0, False),
        (verdict.TOO_NOISY, 1.3, 0.5, False),
    ],
)
def test_a_printed_statement_is_wrong_where_it_is_false_of_the_true_gain(
    rule: int, low: float, gain: float, false: bool
) -> None:
    assert bool(wrong(rule, low, 0.02, 1.5, gain)) == false
    assert wrong(np.array([rule]), np.array([low]), np.array([0.02]), 1.5, gain).tolist() == [false]
