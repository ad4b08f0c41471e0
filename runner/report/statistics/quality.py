"""Verdicts on the final metric: not worse, better, better after the same time, and quality joined with time.

Differences are arm minus baseline in points of a metric of which more is better (of a loss: its negative).
Source: docs/method.md, "Quality".
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from .several_arms import Family
from .verdict import GAINS, PROVISIONAL, Bound, Conditions, Hypothesis, Verdict, Word, not_judged, settled
from .welch import FEWEST_RUNS, LEVEL, Estimate, Interval, mean_of

SAME_STEP = Interval(0.95, 1.05)  # ratio of times per step within which one common time compares quality


def difference(base: Sequence[float], arm: Sequence[float], *, level: float = LEVEL) -> Estimate | None:
    """Arm minus baseline from the final metric of each run, in points; None below 3 runs on a side.

    Raises ConfigError for a value that is not finite: `diverged` stands for a run that ended in none.
    """
    if min(len(base), len(arm)) < FEWEST_RUNS:
        return None
    return mean_of(arm, level=level) - mean_of(base, level=level)


def no_loss(
    claim: Hypothesis, interval: Interval | None, conditions: Conditions, *, family: Family | None = None
) -> Verdict:
    """Whether the arm loses no more than `claim.quality_margin` points."""
    low = -claim.quality_margin
    return _verdict(claim, interval, conditions, (low, low), family, gain=False)


def better(
    claim: Hypothesis,
    interval: Interval | None,
    conditions: Conditions,
    *,
    fresh_difference: float | None,
    family: Family | None = None,
) -> Verdict:
    """Whether the arm is better: supported above |D(A, A″)|, contradicted below 0.

    `fresh_difference`: D(A, A″) in points, None if A″ was not run, which forbids a verdict.
    """
    if fresh_difference is None:
        reason = "no noise floor of the metric: no second baseline with fresh seeds"
        conditions = replace(conditions, forbidden=(*conditions.forbidden, reason))
    return _verdict(claim, interval, conditions, (0.0, abs(fresh_difference or 0.0)), family, gain=True)


def at_equal_time(conditions: Conditions, step_ratio: Interval | None) -> Conditions:
    """The conditions of `better` on the metric of the last evaluation up to one common time (`last_up_to`).

    `step_ratio`: interval of the ratio of times per step; no verdict unless it lies inside `SAME_STEP`.
    """
    if step_ratio and SAME_STEP.low <= step_ratio.low and step_ratio.high <= SAME_STEP.high:
        return conditions
    ends = "unknown" if step_ratio is None else f"[{step_ratio.low:.3g}, {step_ratio.high:.3g}]"
    reason = f"ratio of times per step {ends}: must lie inside [{SAME_STEP.low:g}, {SAME_STEP.high:g}]"
    return replace(conditions, forbidden=(*conditions.forbidden, reason))


def last_up_to(points: Sequence[tuple[float, float]], limit_s: float) -> float | None:
    """The metric of the last evaluation at or before `limit_s` of T_train; None if there was none by then.

    `points`: T_train and metric of each evaluation; `limit_s`: the comparator's median T_train of the
    schedule. NaN stays NaN.
    """
    by_then = [point for point in points if point[0] <= limit_s]
    return max(by_then, key=lambda point: point[0])[1] if by_then else None


def join(time: Verdict, quality: Verdict, *, quantifier: str) -> Verdict:
    """`fixed_work`: the verdict on time, as far as quality allows it (docs/method.md, "Quality").

    Where either part has no verdict, or is not testable, so is the whole.
    """
    for word in ("no verdict", "not testable here"):
        refused = [part for part in (time, quality) if part.word == word]
        if refused:
            reasons = dict.fromkeys(reason for part in refused for reason in part.reasons)
            return Verdict(word=word, reasons=tuple(reasons))
    kept = tuple(remark for remark in time.remarks if remark == PROVISIONAL)
    if quality.word == "contradicted":
        lost: Word = "smaller here" if quantifier == "up_to" else "contradicted"
        return Verdict(word=lost, remarks=("quality lost", *kept), reasons=time.reasons)
    if quality.word == "inconclusive" and time.word in GAINS:
        return replace(quality, remarks=("quality open", *kept))
    if quality.word == "inconclusive" and time.word == "inconclusive":
        needed = [part.smallest_n for part in (time, quality) if part.smallest_n is not None]
        return replace(time, smallest_n=max(needed) if len(needed) == 2 else None)
    return time


def _verdict(
    claim: Hypothesis,
    interval: Interval | None,
    conditions: Conditions,
    edges: tuple[float, float],
    family: Family | None,
    *,
    gain: bool,
) -> Verdict:
    """Contradicted wholly below the first edge, supported wholly above the second.

    `gain`: whether "supported" states a gain, which is corrected for all arms of `family` as every loss is.
    """
    # The bound of communication does not concern quality.
    refused = not_judged(claim, replace(conditions, bound=Bound()))
    if refused is not None:
        return refused
    lower, upper = edges

    def decides(low: Any, high: Any, low_of_all: Any, high_of_all: Any) -> Any:
        return ((low > upper) & ((low_of_all > 0) | (not gain))) | (high_of_all < lower)

    word: Word = "inconclusive"
    if interval is not None and interval.low > upper:
        word = "supported"
    elif interval is not None and interval.high < lower:
        word = "contradicted"
    corrected = None if word == "supported" and not gain else family
    made = Verdict(word=word, reasons=() if interval else ("no interval of the metric",))
    made = settled(made, conditions, family=corrected, edge=lower, decides=decides)
    if conditions.diverged and made.word == "supported":
        made = replace(made, word="inconclusive", reasons=("a run of the arm diverged", *made.reasons))
    return replace(made, smallest_n=None) if conditions.diverged else made
