"""Verdicts on the final metric: not worse, better, better after the same time, and quality joined with time.

Differences are arm minus baseline in points of a metric of which more is better (of a loss: its negative).
Source: docs/method.md, "Quality".
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from ....strategies.errors import ConfigError
from . import estimate
from .claim_verdicts import Claim, Conditions, Verdict, Word
from .decide import Forecast, not_judged, smallest_n, standing
from .estimate import LEVEL, Estimate, Interval
from .ratio import FEWEST_RUNS

SAME_STEP = Interval(0.95, 1.05)  # ratio of times per step within which one common time compares quality
_FROM_QUALITY = ("reproduced", "partly", "supported")  # what needs the quality to hold as well


@dataclass(frozen=True, kw_only=True)
class Difference:
    """Arm minus baseline, in points, with the Welch interval at `level`."""

    estimate: Estimate
    level: float

    @property
    def interval(self) -> Interval:
        return self.estimate.interval(self.level)

    def with_runs(self, runs: int) -> Interval:
        """The interval that `runs` runs of each arm would give if difference and spread stayed."""
        return self.estimate.with_runs(runs).interval(self.level)


def difference(base: Sequence[float], arm: Sequence[float], *, level: float = LEVEL) -> Difference | None:
    """From the final metric of each run, in points; None below 3 runs on a side.

    Raises ConfigError for a value that is not finite: diverged runs are told with `diverged`, not as numbers.
    """
    if min(len(base), len(arm)) < FEWEST_RUNS:
        return None
    return Difference(estimate=estimate.welch(arm, base), level=level)


def no_loss(
    claim: Claim,
    interval: Interval | None,
    conditions: Conditions,
    *,
    diverged: bool = False,
    forecast: Forecast | None = None,
) -> Verdict:
    """Whether the arm loses no more than `claim.quality_margin` points.

    Supported above -margin, contradicted below it. `diverged`: a run of the arm did, so inconclusive at best.
    """
    low = -claim.quality_margin
    return _verdict(claim, interval, conditions, (low, low), diverged=diverged, forecast=forecast)


def better(
    claim: Claim,
    interval: Interval | None,
    conditions: Conditions,
    *,
    fresh_difference: float | None,
    diverged: bool = False,
    forecast: Forecast | None = None,
) -> Verdict:
    """Whether the arm is better: supported above |D(A, A″)|, contradicted below 0.

    `fresh_difference`: D(A, A″) in points, None if A″ was not run, which forbids a verdict.
    """
    if fresh_difference is None:
        reason = "A″ is missing: no noise floor of the metric"
        conditions = replace(conditions, forbidden=(*conditions.forbidden, reason))
    edges = (0.0, abs(fresh_difference or 0.0))
    return _verdict(claim, interval, conditions, edges, diverged=diverged, forecast=forecast)


def quality_at_time(
    claim: Claim,
    interval: Interval | None,
    conditions: Conditions,
    *,
    fresh_difference: float | None,
    step_ratio: Interval | None,
    diverged: bool = False,
    forecast: Forecast | None = None,
) -> Verdict:
    """`better`, on the metric of the last evaluation up to one common time (`last_up_to`).

    `step_ratio`: interval of the ratio of times per step; no verdict unless it lies wholly inside [0.95,
    1.05].
    """
    if step_ratio is None or step_ratio.low < SAME_STEP.low or step_ratio.high > SAME_STEP.high:
        said = "unknown" if step_ratio is None else f"[{step_ratio.low:.3g}, {step_ratio.high:.3g}]"
        reason = f"ratio of times per step {said}: must lie inside [{SAME_STEP.low:g}, {SAME_STEP.high:g}]"
        conditions = replace(conditions, forbidden=(*conditions.forbidden, reason))
    return better(
        claim,
        interval,
        conditions,
        fresh_difference=fresh_difference,
        diverged=diverged,
        forecast=forecast,
    )


def last_up_to(seconds: Sequence[float], values: Sequence[float], limit_s: float) -> float | None:
    """The metric of the last evaluation at or before `limit_s` of T_train; None if there was none by then.

    `limit_s` is the comparator's median T_train of the schedule. NaN stays NaN. Raises ConfigError for
    unequal lengths.
    """
    if len(seconds) != len(values):
        raise ConfigError(f"{len(seconds)} times for {len(values)} values: must be one for each")
    by_then = [(time, value) for time, value in zip(seconds, values, strict=True) if time <= limit_s]
    return max(by_then, key=lambda pair: pair[0])[1] if by_then else None


def join(time: Verdict, quality: Verdict, *, quantifier: str) -> Verdict:
    """`fixed_work`: the verdict on time, as far as quality allows it.

    Quality supported: the verdict on time. Contradicted: "contradicted" ("smaller here" for up_to), "quality
    lost". Inconclusive: what claims success becomes inconclusive, "quality open", the rest stays. The rules
    do not say what holds where either part has no verdict or is not testable: then the whole has none, or is
    not.
    """
    for word in ("no verdict", "not testable here"):
        stopped = [part for part in (time, quality) if part.word == word]
        if stopped:
            reasons = dict.fromkeys(reason for part in stopped for reason in part.reasons)
            return Verdict(word=word, reasons=tuple(reasons))
    if quality.word == "supported":
        return time
    kept = tuple(remark for remark in time.remarks if remark == "provisional")
    if quality.word == "contradicted":
        lost: Word = "smaller here" if quantifier == "up_to" else "contradicted"
        return Verdict(word=lost, remarks=("quality lost", *kept), reasons=time.reasons)
    if time.word in _FROM_QUALITY:
        return Verdict(
            word="inconclusive",
            remarks=("quality open", *kept),
            reasons=quality.reasons,
            smallest_n=quality.smallest_n,
        )
    if time.word != "inconclusive":
        return time
    both = (time.smallest_n, quality.smallest_n)
    return replace(time, smallest_n=None if None in both else max(n for n in both if n is not None))


def _verdict(
    claim: Claim,
    interval: Interval | None,
    conditions: Conditions,
    edges: tuple[float, float],
    *,
    diverged: bool,
    forecast: Forecast | None,
) -> Verdict:
    """Contradicted wholly below the first edge, supported wholly above the second."""
    # What communication can save says nothing about quality.
    stop = not_judged(claim, replace(conditions, bound=None))
    if stop is not None:
        return stop
    if interval is None:
        return standing(Verdict(word="inconclusive", reasons=("no interval of the metric",)), conditions)
    judge = _judge(edges)
    word = judge(interval)
    reasons: tuple[str, ...] = ()
    if diverged and word == "supported":
        word, reasons, forecast = "inconclusive", ("a run of the arm diverged",), None
    needed = None
    if word == "inconclusive" and forecast is not None and not diverged:
        needed = smallest_n(lambda future: judge(future) != "inconclusive", forecast, conditions.runs)
    return standing(Verdict(word=word, reasons=reasons, smallest_n=needed), conditions)


def _judge(edges: tuple[float, float]) -> Callable[[Interval], Word]:
    def judge(interval: Interval) -> Word:
        if interval.low > edges[1]:
            return "supported"
        return "contradicted" if interval.high < edges[0] else "inconclusive"

    return judge
