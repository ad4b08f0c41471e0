"""What is measured for each headline of a claim, and the verdict on it.

Source: docs/method.md, "Headlines" and "Verdict on a claim"; the rules are in `runner/report/statistics/`.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median

from .. import words
from ..data.load import Run
from ..sections.efficiency import SLOWER, cores_of, matrix, why_none
from ..statistics import quality, verdict
from ..statistics.ratio import Estimate, Interval, Ratio
from ..statistics.verdict import Conditions, Forecast, Hypothesis, Verdict
from . import recorded
from .comparison import Method
from .speedups import Answer, Line


@dataclass(frozen=True, kw_only=True)
class Measured:
    """A verdict, and what was measured in words. `ratio`: see `Judged`."""

    verdict: Verdict
    said: str
    ratio: Ratio | None = None


Headline = Callable[[Hypothesis, Answer, Line, Conditions], Measured]


def fixed_work(claim: Hypothesis, given: Answer, line: Line, conditions: Conditions) -> Measured:
    """Time of the complete schedule, together with a quality that is not inferior."""
    time = _time(claim, line.fixed_work, conditions, line.holm[0])
    kept = no_loss(claim, given, line, conditions)
    return Measured(
        verdict=quality.join(time, kept.verdict, quantifier=claim.quantifier),
        said=f"{words.interval(line.fixed_work)} in time, {kept.said}",
        ratio=line.fixed_work,
    )


def no_loss(claim: Hypothesis, given: Answer, line: Line, conditions: Conditions) -> Measured:
    """Whether the final metric is no worse than the margin allows."""
    interval, forecast = _of(line.quality)
    made = quality.no_loss(claim, interval, conditions, diverged=line.diverged, forecast=forecast)
    return Measured(verdict=made, said=_points(line))


def better(claim: Hypothesis, given: Answer, line: Line, conditions: Conditions) -> Measured:
    """Whether the final metric is better than two baselines differ by."""
    interval, forecast = _of(line.quality)
    made = quality.better(
        claim,
        interval,
        conditions,
        fresh_difference=given.fresh_points,
        diverged=line.diverged,
        forecast=forecast,
    )
    return Measured(verdict=made, said=_points(line))


def time_to_target(claim: Hypothesis, given: Answer, line: Line, conditions: Conditions) -> Measured:
    """Time of the first crossing."""
    found = line.to_target
    made = _time(claim, found, conditions, line.holm[1])
    return Measured(verdict=made, said=f"{words.interval(found)} in time to target", ratio=found)


def efficiency(claim: Hypothesis, given: Answer, line: Line, conditions: Conditions) -> Measured:
    """Samples per second, of the runs that did all their work; the ledger holds the machines equal."""
    found = _rates(given, line)
    made = _time(claim, found, conditions, None)
    return Measured(verdict=made, said=f"{words.interval(found)} in samples per second", ratio=found)


def quality_at_time(claim: Hypothesis, given: Answer, line: Line, conditions: Conditions) -> Measured:
    """The metric of the last evaluation up to the comparator's median time of the whole schedule."""
    spent = [run.train_s for run in given.against.complete if run.train_s]
    if not spent:
        none = Verdict(word="no verdict", reasons=("no run of the comparator did all its work",))
        return Measured(verdict=none, said="")
    limit_s = median(spent)
    base, arm = (_points_at(one.counted, limit_s) for one in (given.against, line.arm))
    found = quality.difference(base, arm, level=given.level)
    steps = _rates(given, line)
    interval, forecast = _of(found)
    made = quality.quality_at_time(
        claim,
        interval,
        conditions,
        fresh_difference=given.fresh_points,
        step_ratio=steps.interval if steps else None,
        diverged=line.diverged,
        forecast=forecast,
    )
    said = f"{found.difference:+.2f} points" if found else "no difference"
    return Measured(verdict=made, said=f"{said} at equal time, {words.interval(steps)} in time per sample")


HEADLINES: dict[str, Headline] = {
    "fixed_work": fixed_work,
    "time_to_target": time_to_target,
    "efficiency": efficiency,
    "quality": better,
    "quality_at_time": quality_at_time,
}


@dataclass(frozen=True, kw_only=True)
class Most:
    """Times as fast as the comparator, and its upper limit. `headroom`, `uneven`: see `Conditions`.

    `unknown`: why the limit is not known as well as it could be. `impossible`: why it is none, and nothing
    that was measured here is to be judged.
    """

    value: float | None
    limit: float | None
    headroom: bool = False
    uneven: bool = False
    unknown: str = ""
    impossible: str = ""


def most(headline: str, given: Answer, floor: float | None) -> Most:
    """What a claim with that headline cannot exceed on this machine; `floor`: the study's noise, m."""
    # Of cores that idle a saving of communication knows nothing. Where computing is modelled none idles.
    if headline == "efficiency" and not _modelled(given):
        return _of_cores(given, floor or 0.0)
    return Most(value=given.bound.value, limit=given.bound.limit, uneven=given.bound.uneven)


def _of_cores(given: Answer, floor: float) -> Most:
    """The comparator's headroom; where that is not known the number of cores, which it cannot exceed."""
    found, against = matrix(given.comparison), given.against
    line = found.of(against) if found else None
    cores = cores_of(against)
    if found is None or line is None or found.no_headroom:
        why = why_none(given.comparison) or (found and found.no_headroom) or f"no line of {against.label}"
        return Most(
            value=None if cores is None else float(cores),
            limit=None,
            headroom=True,
            unknown=f"headroom not known: {why}",
        )
    impossible = ""
    if line.headroom > found.cores * (1 + floor):
        impossible = (
            f"{against.label} on {found.cores} cores is slower than one core alone (headroom "
            f"{line.headroom:.3g}): {SLOWER}"
        )
    return Most(value=line.headroom, limit=line.headroom_limit, headroom=True, impossible=impossible)


def _modelled(given: Answer) -> bool:
    """Whether how fast ranks compute was put in."""
    return all(recorded.paced(run) for run in given.against.runs)


def _rates(given: Answer, line: Line) -> Ratio | None:
    """Of seconds a sample, in the way that the plan chose."""
    return Method(given.comparison, given.against).per_sample(line.arm)


def _time(claim: Hypothesis, found: Ratio | None, conditions: Conditions, holm: float | None) -> Verdict:
    made = verdict.ratio_verdict(
        claim,
        found.interval if found else None,
        conditions,
        forecast=found.with_runs if found else None,
    )
    gains = made.word in ("reproduced", "partly", "supported") or verdict.A_GAIN in made.remarks
    return made.corrected(holm) if gains and holm is not None else made


def _of(found: Estimate | None) -> tuple[Interval | None, Forecast | None]:
    """The interval of a difference, and what more runs would make of it."""
    return (found.interval, found.with_runs) if found else (None, None)


def _points_at(runs: Sequence[Run], limit_s: float) -> list[float]:
    found = (
        quality.last_up_to(
            [row["train_s"] for row in run.evaluations],
            [row.get(run.judged_by.key, float("nan")) for row in run.evaluations],
            limit_s,
        )
        for run in runs
    )
    return [100 * value for value in found if value is not None and not math.isnan(value)]


def _points(line: Line) -> str:
    found = line.quality
    if found is None:
        return f"no difference of {line.arm.runs[0].judged_by.name}"
    ends = found.interval
    return f"{found.difference:+.2f} points [{ends.low:+.2f}, {ends.high:+.2f}]"
