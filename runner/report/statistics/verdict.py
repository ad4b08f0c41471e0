"""From an interval to the verdict on a claim: its conditions, the rules, and what forbids a verdict.

Every input gets exactly one word. The rules take numbers or arrays of simulated studies. Source:
docs/method.md, "Verdict on a claim"; rule numbers are those of its table.
"""

import math
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np

from .noise_floor import NoiseFloor
from .several_arms import EACH_SIDE, Decides, Family
from .welch import Interval

FEWEST_VERDICT_RUNS = 5  # below: an interval, but no verdict
FEWEST_EVALUATIONS = 20  # before the crossing, of the median run of either arm
A_GAIN = "a gain"
EXCEEDED = "exceeded"
PROVISIONAL = "provisional"
CANNOT = {  # by what a bound rests on
    "communication": "no communication saving",
    "balance and communication": "not even perfect balance without communication",
    "cores": "not even all cores at work, each as fast as one alone,",
}
GAINS, LOSSES = ("reproduced", "partly", "supported"), ("contradicted", "smaller here")  # words
TOO_NOISY, REPRODUCED, CONTRADICTED, PARTLY, INCONCLUSIVE = 2, 3, 4, 5, 6  # rules

Word = Literal[
    "no verdict",
    "not testable here",
    "inconclusive (too noisy)",
    "reproduced",
    "contradicted",
    "smaller here",
    "partly",
    "inconclusive",
    "supported",
]


@dataclass(frozen=True, kw_only=True)
class Hypothesis:
    """A claim as the rules judge it: times as fast (`value`, above 1), or a direction only (None).

    `quantifier`: "typical", or "up_to" where some configuration is said to reach it. `quality_margin`: δ of
    "no loss", in points of the metric.
    """

    value: float | None = None
    headline: str = "fixed_work"
    quantifier: str = "typical"
    quality_margin: float = 0.5


@dataclass(frozen=True, kw_only=True)
class Bound:
    """What nothing here can exceed: times as fast as the comparator; None where it is not known.

    `limit`: the upper one-sided 95 % limit of `value`. `of`: what the bound rests on, a key of `CANNOT`.
    `schedule`: what of the arm's own schedule makes `value` lower than for other arms. `unknown`: why it is
    none, or not as low as it could be. `impossible`: why no measurement of this study is to be judged.
    """

    value: float | None = None
    limit: float | None = None
    of: str = "communication"
    schedule: str = ""
    unknown: str = ""
    impossible: str = ""


@dataclass(frozen=True, kw_only=True)
class Conditions:
    """All that decides on a verdict besides the interval.

    `runs`: n of the compared arm with fewer. `evaluations`: before the crossing, of the median run, the
    smaller of both arms; only time_to_target needs it. `own_conditions`: these are the claim's own stated
    ones. `differs`: what differs from them; `not_stated`: what the source does not give. `forbidden`: why
    checks of the study forbid a verdict ("weak baseline"). `diverged`: a run of the arm did, so its quality
    is never "supported".
    """

    runs: int
    noise: NoiseFloor
    evaluations: float | None = None
    bound: Bound = field(default_factory=Bound)
    own_conditions: bool = False
    differs: tuple[str, ...] = ()
    not_stated: tuple[str, ...] = ()
    forbidden: tuple[str, ...] = ()
    diverged: bool = False

    @property
    def left_open(self) -> tuple[str, ...]:
        """What no verdict of the study could take into account."""
        return (*filter(None, [self.bound.unknown]), *(f"not stated: {each}" for each in self.not_stated))


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """One word on one claim.

    `remarks`: further statements about the true gain or its standing ("exceeded", "a gain", "quality lost",
    "provisional"). `reasons`: why there is no verdict, or what it could not take into account. `smallest_n`:
    runs per arm with which 4 of 5 further studies would decide, at most 100; None if none does or is needed.
    """

    word: Word
    remarks: tuple[str, ...] = ()
    reasons: tuple[str, ...] = ()
    smallest_n: int | None = None


def bands(value: float) -> tuple[float, float, float]:
    """(a, b, d) of a claim of `value` times as fast: at a half, 3/4 and 5/4 of the claimed gain."""
    gain = value - 1
    return 1 + 0.5 * gain, 1 + 0.75 * gain, 1 + 1.25 * gain


def number_rule(low: Any, high: Any, floor: Any, value: float) -> Any:
    """Which of rules 2 to 6 decides: the first that holds for [low, high] and the noise floor `floor`."""
    a, b, _ = bands(value)
    least = np.asarray(1 + floor)
    return np.select(
        [least >= a, low > b, high < a, (low > least) & (high < value)],
        [TOO_NOISY, REPRODUCED, CONTRADICTED, PARTLY],
        INCONCLUSIVE,
    )


def ratio_verdict(
    claim: Hypothesis, interval: Interval | None, conditions: Conditions, *, family: Family | None = None
) -> Verdict:
    """The verdict on the time, or efficiency, of one configuration.

    `interval`: of the ratio, baseline over arm; None if there is no ratio although there were runs enough.
    The order: reasons for no verdict, rule 1, the rules on the interval, the correction for all arms of
    `family`. Without a family nothing is corrected, and no number of runs that would decide is given.
    """
    refused = not_judged(claim, conditions)
    if refused is not None:
        return refused
    floor = conditions.noise.floor
    assert floor is not None, "a missing floor is a reason for no verdict"
    ends = interval or Interval(0.0, math.inf)
    made = _by_rules(claim, ends, conditions, floor)
    if interval is None:
        made = replace(made, reasons=("no ratio: too many runs missed the target",))
    edge = 1.0 if claim.value is None else bands(claim.value)[0]

    def decides(low: Any, high: Any, low_of_all: Any, high_of_all: Any) -> Any:
        """Which studies get another word than "inconclusive"; the bound is left out."""
        if claim.value is None:
            return ((low > 1 + floor) & (low_of_all > 1)) | (high_of_all < edge)
        rule = number_rule(low, high, floor, claim.value)
        smaller = (rule == CONTRADICTED) & (high_of_all < edge)
        return smaller | (((rule == REPRODUCED) | (rule == PARTLY)) & (low_of_all > 1))

    # A bound of the machine may contradict what the interval does not: there is nothing to correct.
    correctable = edge if ends.high < edge else math.inf
    return settled(made, conditions, family=family, edge=correctable, decides=decides)


def settled(
    made: Verdict, conditions: Conditions, *, family: Family | None, edge: float, decides: Decides
) -> Verdict:
    """The verdict `made`, after correction for all arms of `family`, with what holds for the whole study.

    A gain, or a loss below `edge`, whose Holm-adjusted one-sided p is above 0.025 is not stated: the word
    becomes "inconclusive".
    """
    word, remarks, needed = made.word, made.remarks, None
    if family is not None:
        if (word in GAINS or A_GAIN in remarks) and family.p_of_gain > EACH_SIDE:
            word = "inconclusive" if word in GAINS else word
            kept = (remark for remark in remarks if remark not in (A_GAIN, EXCEEDED))
            remarks = (*kept, "not after correction")
        if word in LOSSES and family.p_of_loss(edge) > EACH_SIDE:
            word, remarks = "inconclusive", (*remarks, "loss not after correction")
        if word == "inconclusive":
            needed = family.smallest_n(decides, conditions.runs)
    return Verdict(
        word=word,
        remarks=(*remarks, *((PROVISIONAL,) if conditions.noise.biased else ())),
        reasons=(*made.reasons, *conditions.left_open),
        smallest_n=needed,
    )


def not_judged(claim: Hypothesis, conditions: Conditions) -> Verdict | None:
    """The verdict where no interval may decide ("no verdict", "not testable here"), with reasons, or None."""
    noise, reasons = conditions.noise, list[str]()
    if conditions.runs < FEWEST_VERDICT_RUNS:
        reasons.append(f"{conditions.runs} runs per arm: a verdict needs {FEWEST_VERDICT_RUNS}")
    reasons += [f"no noise floor: no second baseline with {seeds}" for seeds in noise.missing]
    if noise.unknown:
        reasons.append(f"no noise floor: {noise.unknown}")
    before = conditions.evaluations
    if claim.headline == "time_to_target" and (before is None or before < FEWEST_EVALUATIONS):
        counted = "not counted" if before is None else f"{before:g}"
        reasons.append(f"evaluations before the crossing: {counted}, must be {FEWEST_EVALUATIONS}")
    if reasons or conditions.forbidden:
        return Verdict(word="no verdict", reasons=(*reasons, *conditions.forbidden))
    # Rule 1. An unknown bound forbids nothing, nor does any bound in the claim's own conditions.
    reasons += [f"differs from the claim's: {condition}" for condition in conditions.differs]
    reasons += () if conditions.own_conditions else out_of_reach(claim, conditions.bound)
    if reasons:
        return Verdict(word="not testable here", reasons=(*reasons, *conditions.left_open))
    return None


def out_of_reach(claim: Hypothesis, bound: Bound) -> tuple[str, ...]:
    """That the claimed size lies above the bound, and why; () if it does not, or the bound is unknown."""
    if claim.value is None or bound.value is None or bound.value >= claim.value:
        return ()
    why = f" ({bound.schedule})" if bound.schedule else ""
    return (f"{CANNOT[bound.of]} can exceed {bound.value:.3g} here{why}, the claim is {claim.value:.4g}",)


def _by_rules(claim: Hypothesis, interval: Interval, conditions: Conditions, floor: float) -> Verdict:
    gain = interval.low > 1 + floor
    if claim.value is None:
        return Verdict(word="supported" if gain else "contradicted" if interval.high < 1 else "inconclusive")
    rule, (a, _, d) = int(number_rule(interval.low, interval.high, floor, claim.value)), bands(claim.value)
    if rule == TOO_NOISY:
        return Verdict(word="inconclusive (too noisy)")
    if rule == REPRODUCED:
        return Verdict(word="reproduced", remarks=(EXCEEDED,) if interval.low > d else ())
    remarks, limit = (A_GAIN,) if gain else (), conditions.bound.limit
    up_to = claim.quantifier == "up_to"
    # In the claim's own conditions even the upper limit of the bound is below a: no saving reaches it.
    if up_to and conditions.own_conditions and limit is not None and limit < a:
        return Verdict(word="contradicted", remarks=remarks)
    if rule == CONTRADICTED:
        return Verdict(word="smaller here" if up_to else "contradicted", remarks=remarks)
    return Verdict(word="partly") if rule == PARTLY else Verdict(word="inconclusive", remarks=remarks)
