"""From interval to verdict: claims of a number and of a direction. Every input gets exactly one word.

Source: docs/method.md, "Verdict on a claim".
"""

from collections.abc import Callable
from dataclasses import replace

from . import decision_rules
from .claim_verdicts import Claim, Conditions, Verdict, Word, no_verdict_reasons, untestable_reasons
from .estimate import Interval
from .ratio import SIGNIFICANT

MOST_RUNS = 100  # up to which an undecided study is told how many runs would decide
UNKNOWN = Interval(0.0, float("inf"))  # both arms missed the target in some runs: neither end is known
A_GAIN = "a gain"
EXCEEDED = "exceeded"
PROVISIONAL = "provisional"
NOT_AFTER_CORRECTION = "not after correction"
Forecast = Callable[[int], Interval]
"""The interval that n runs per arm would give at the present estimate and spread (`Ratio.with_runs`)."""


def verdict(
    claim: Claim, interval: Interval | None, conditions: Conditions, *, forecast: Forecast | None = None
) -> Verdict:
    """The verdict on the time, or efficiency, of one configuration.

    `interval`: of the ratio, baseline over arm; None if there is no ratio although there were runs enough,
    which leaves both ends unbounded. The order: reasons for no verdict, rule 1, then the rules on the
    interval. Without a `forecast` an undecided study is told no number of runs.
    """
    stop = not_judged(claim, conditions)
    if stop is not None:
        return stop
    floor = conditions.floor
    assert floor is not None, "a missing floor is a reason for no verdict"
    known = interval or UNKNOWN
    judge = _direction if claim.value is None else _number
    word, remarks = judge(claim, known, conditions, floor)
    needed = None
    if word == "inconclusive" and forecast is not None:
        needed = smallest_n(
            lambda future: judge(claim, future, conditions, floor)[0] != "inconclusive",
            forecast,
            conditions.runs,
        )
    reasons = () if interval is not None else ("no ratio: too many runs missed the target",)
    return standing(Verdict(word=word, remarks=remarks, reasons=reasons, smallest_n=needed), conditions)


def not_judged(claim: Claim, conditions: Conditions) -> Verdict | None:
    """The verdict where no interval may decide ("no verdict", "not testable here"), with reasons, or None."""
    reasons = no_verdict_reasons(conditions, claim.headline)
    if reasons:
        return Verdict(word="no verdict", reasons=reasons)
    reasons = untestable_reasons(claim, conditions)
    if reasons:
        return Verdict(word="not testable here", reasons=(*reasons, *_left_open(conditions)))
    return None


def standing(found: Verdict, conditions: Conditions) -> Verdict:
    """`found` with what holds for every verdict of the study: provisional, and what could not be asked."""
    remarks = (PROVISIONAL,) if conditions.biased else ()
    return replace(
        found, remarks=(*found.remarks, *remarks), reasons=(*found.reasons, *_left_open(conditions))
    )


def corrected(found: Verdict, adjusted_p: float) -> Verdict:
    """`found` with the remark "not after correction" if the Holm-adjusted p of "no gain" is above 0.05."""
    if adjusted_p <= SIGNIFICANT:
        return found
    return replace(found, remarks=(*found.remarks, NOT_AFTER_CORRECTION))


def smallest_n(decided: Callable[[Interval], bool], forecast: Forecast, runs: int) -> int | None:
    """The smallest n above `runs`, at most 100, whose forecast interval decides; None if none does.

    The noise floor stays as it is: how it would shrink is not known.
    """
    return next((n for n in range(runs + 1, MOST_RUNS + 1) if decided(forecast(n))), None)


def _left_open(conditions: Conditions) -> tuple[str, ...]:
    unknown = (conditions.bound_unknown,) if conditions.bound_unknown else ()
    return (*unknown, *(f"not stated: {what}" for what in conditions.not_stated))


def _number(
    claim: Claim, interval: Interval, conditions: Conditions, floor: float
) -> tuple[Word, tuple[str, ...]]:
    assert claim.value is not None, "a direction has no bands"
    rule = int(decision_rules.number_rule(interval.low, interval.high, floor, claim.value))
    gain = (A_GAIN,) if decision_rules.gain_shown(interval.low, floor) else ()
    if rule == decision_rules.TOO_NOISY:
        return "inconclusive (too noisy)", ()
    if rule == decision_rules.REPRODUCED:
        return "reproduced", (EXCEEDED,) if decision_rules.exceeded(interval.low, claim.value) else ()
    if claim.quantifier == "up_to" and _cannot_be_reached(claim.value, conditions):
        return "contradicted", gain
    if rule == decision_rules.CONTRADICTED:
        return "smaller here" if claim.quantifier == "up_to" else "contradicted", gain
    if rule == decision_rules.PARTLY:
        return "partly", ()
    return "inconclusive", gain


def _cannot_be_reached(value: float, conditions: Conditions) -> bool:
    """In the claim's own conditions even the upper limit of the bound is below a: no saving reaches it."""
    limit = conditions.bound_limit
    return conditions.own_conditions and limit is not None and limit < decision_rules.bands(value).a


def _direction(
    claim: Claim, interval: Interval, conditions: Conditions, floor: float
) -> tuple[Word, tuple[str, ...]]:
    if decision_rules.gain_shown(interval.low, floor):
        return "supported", ()
    if interval.high < 1:
        return "contradicted", ()
    return "inconclusive", ()
