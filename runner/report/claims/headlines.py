"""The measurement behind each headline of a claim, its verdict, and the upper limit of what can be measured.

Source: docs/method.md, "Headlines" and "Verdict on a claim"; the rules are in `runner/report/statistics/`.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median

from .. import words
from ..data.load import Run
from ..statistics import quality, verdict
from ..statistics.ratio import Estimate, Interval, Ratio
from ..statistics.verdict import Conditions, Forecast, Hypothesis, Verdict
from . import recorded
from .core_efficiency import SLOWER, cores_of, matrix, why_none
from .speedups import ArmSpeedup, Method, Speedups


@dataclass(frozen=True, kw_only=True)
class Measured:
    """A verdict, and the measurement in words. `ratio`: see `JudgedClaim`."""

    verdict: Verdict
    words: str
    ratio: Ratio | None = None


Headline = Callable[[Hypothesis, Speedups, ArmSpeedup, Conditions], Measured]


def fixed_work(claim: Hypothesis, speedups: Speedups, line: ArmSpeedup, conditions: Conditions) -> Measured:
    """Time of the complete schedule, together with a quality that is not inferior."""
    time = _time(claim, line.fixed_work, conditions, line.holm[0])
    kept = no_loss(claim, speedups, line, conditions)
    return Measured(
        verdict=quality.join(time, kept.verdict, quantifier=claim.quantifier),
        words=f"{words.interval(line.fixed_work)} in time, {kept.words}",
        ratio=line.fixed_work,
    )


def no_loss(claim: Hypothesis, speedups: Speedups, line: ArmSpeedup, conditions: Conditions) -> Measured:
    """Whether the final metric is no worse than the margin allows."""
    interval, forecast = _interval_of(line.quality)
    made = quality.no_loss(claim, interval, conditions, diverged=line.diverged, forecast=forecast)
    return Measured(verdict=made, words=_points(line))


def better(claim: Hypothesis, speedups: Speedups, line: ArmSpeedup, conditions: Conditions) -> Measured:
    """Whether the final metric is better than two baselines differ by."""
    interval, forecast = _interval_of(line.quality)
    made = quality.better(
        claim,
        interval,
        conditions,
        fresh_difference=speedups.fresh_points,
        diverged=line.diverged,
        forecast=forecast,
    )
    return Measured(verdict=made, words=_points(line))


def time_to_target(
    claim: Hypothesis, speedups: Speedups, line: ArmSpeedup, conditions: Conditions
) -> Measured:
    """Time of the first crossing."""
    made = _time(claim, line.to_target, conditions, line.holm[1])
    text = f"{words.interval(line.to_target)} in time to target"
    return Measured(verdict=made, words=text, ratio=line.to_target)


def efficiency(claim: Hypothesis, speedups: Speedups, line: ArmSpeedup, conditions: Conditions) -> Measured:
    """Samples per second of the runs that did all their work; fairness requires the same machines."""
    rates = _rates(speedups, line)
    made = _time(claim, rates, conditions, None)
    return Measured(verdict=made, words=f"{words.interval(rates)} in samples per second", ratio=rates)


def quality_at_time(
    claim: Hypothesis, speedups: Speedups, line: ArmSpeedup, conditions: Conditions
) -> Measured:
    """The metric of the last evaluation up to the comparator's median time of the whole schedule."""
    spent = [run.train_s for run in speedups.against.complete if run.train_s]
    if not spent:
        none = Verdict(word="no verdict", reasons=("no run of the comparator did all its work",))
        return Measured(verdict=none, words="")
    limit_s = median(spent)
    base, arm = (_points_at(side.counted, limit_s) for side in (speedups.against, line.arm))
    points = quality.difference(base, arm, level=speedups.level)
    steps = _rates(speedups, line)
    interval, forecast = _interval_of(points)
    made = quality.quality_at_time(
        claim,
        interval,
        conditions,
        fresh_difference=speedups.fresh_points,
        step_ratio=steps.interval if steps else None,
        diverged=line.diverged,
        forecast=forecast,
    )
    text = f"{points.difference:+.2f} points" if points else "no difference"
    return Measured(verdict=made, words=f"{text} at equal time, {words.interval(steps)} in time per sample")


HEADLINES: dict[str, Headline] = {
    "fixed_work": fixed_work,
    "time_to_target": time_to_target,
    "efficiency": efficiency,
    "quality": better,
    "quality_at_time": quality_at_time,
}


def _time(claim: Hypothesis, ratio: Ratio | None, conditions: Conditions, holm: float | None) -> Verdict:
    made = verdict.ratio_verdict(
        claim,
        ratio.interval if ratio else None,
        conditions,
        forecast=ratio.with_runs if ratio else None,
    )
    gains = made.word in ("reproduced", "partly", "supported") or verdict.A_GAIN in made.remarks
    return made.corrected(holm) if gains and holm is not None else made


def _rates(speedups: Speedups, line: ArmSpeedup) -> Ratio | None:
    """Of seconds a sample, paired or Welch as the plan chose."""
    return Method(speedups.comparison, speedups.against).per_sample(line.arm)


def _interval_of(difference: Estimate | None) -> tuple[Interval | None, Forecast | None]:
    """The interval of a difference, and its forecast for more runs."""
    return (difference.interval, difference.with_runs) if difference else (None, None)


def _points_at(runs: Sequence[Run], limit_s: float) -> list[float]:
    values = (
        quality.last_up_to(
            [row["train_s"] for row in run.evaluations],
            [row.get(run.judged_by.key, float("nan")) for row in run.evaluations],
            limit_s,
        )
        for run in runs
    )
    return [100 * value for value in values if value is not None and not math.isnan(value)]


def _points(line: ArmSpeedup) -> str:
    if line.quality is None:
        return f"no difference of {line.arm.runs[0].judged_by.name}"
    ends = line.quality.interval
    return f"{line.quality.difference:+.2f} points [{ends.low:+.2f}, {ends.high:+.2f}]"


@dataclass(frozen=True, kw_only=True)
class UpperLimit:
    """The most that can be gained: times as fast as the comparator (`value`), and its upper 95 % limit.

    `headroom`, `uneven`: see `Conditions`. `unknown`: why the limit is not known as well as it could be.
    `impossible`: why it is none, and no measurement of this study is to be judged.
    """

    value: float | None
    limit: float | None
    headroom: bool = False
    uneven: bool = False
    unknown: str = ""
    impossible: str = ""


def upper_limit(headline: str, speedups: Speedups, floor: float | None) -> UpperLimit:
    """What a claim with that headline cannot exceed on this machine; `floor`: the study's noise, m."""
    # A bound of communication does not include idle cores. Where computing is modelled none idles.
    if headline == "efficiency" and not all(recorded.paced(run) for run in speedups.against.runs):
        return _of_cores(speedups, floor or 0.0)
    bound = speedups.bound
    return UpperLimit(value=bound.value, limit=bound.limit, uneven=bound.uneven)


def _of_cores(speedups: Speedups, floor: float) -> UpperLimit:
    """The comparator's headroom; where that is not known the number of cores, which it cannot exceed."""
    efficiencies, against = matrix(speedups.comparison), speedups.against
    line = efficiencies.of(against) if efficiencies else None
    cores = cores_of(against)
    if efficiencies is None or line is None or efficiencies.no_headroom:
        why = why_none(speedups.comparison)
        why = why or (efficiencies and efficiencies.no_headroom) or f"no line of {against.label}"
        return UpperLimit(
            value=None if cores is None else float(cores),
            limit=None,
            headroom=True,
            unknown=f"headroom not known: {why}",
        )
    impossible = ""
    if line.headroom > efficiencies.cores * (1 + floor):
        impossible = (
            f"{against.label} on {efficiencies.cores} cores is slower than one core alone (headroom "
            f"{line.headroom:.3g}): {SLOWER}"
        )
    return UpperLimit(value=line.headroom, limit=line.headroom_limit, headroom=True, impossible=impossible)
