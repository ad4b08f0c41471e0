"""Verdicts on the papers' claims, from the runs that lie there: one per claim, arm and configuration.

A claim is judged by its own headline and against its own comparator; one about time against the baseline of
the study too, where that is another arm. Nothing is typed by hand: every verdict is computed anew from the
run directories. Source: the measuring rules (time to accuracy), "verdict on a claim"; the rules are in
`runner/scoring/`.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import median

from .. import claims as records
from ..scoring import decide, quality, ratio
from ..scoring.claims import Claim, Conditions, Verdict
from ..scoring.ratio import Ratio, Times
from . import words
from .answer import Answer, Line, answer, evaluations
from .arms import Arm, Comparison
from .fairness import Ledger, fairness
from .load import Run

TIME = ("fixed_work", "time_to_target", "efficiency")
_MISSING = "no arm or comparator of three runs or more"


@dataclass(frozen=True, kw_only=True)
class Judged:
    """A claim and what one arm says of it; `arm` and `comparator` are labels. `measured`: in words.

    `ledger`: what both sides have in common, and what not. None with `verdict` "no verdict": nothing was
    compared.
    """

    claim: records.Claim
    comparison: Comparison | None
    arm: str
    comparator: str
    measured: str
    verdict: Verdict
    ledger: Ledger | None


def judge(claims: Iterable[records.Claim], answers: Sequence[Answer]) -> list[Judged]:
    """All verdicts that `answers` allow, in the order of the claims; a claim without any arm gets none."""
    found: list[Judged] = []
    for claim in claims:
        own = [one for each in answers for one in _of_answer(claim, each)]
        found += own or [
            Judged(
                claim=claim,
                comparison=None,
                arm=claim.arm,
                comparator=claim.comparator,
                measured="",
                verdict=Verdict(word="no verdict", reasons=(_MISSING,)),
                ledger=None,
            )
        ]
    return found


def _of_answer(claim: records.Claim, given: Answer) -> list[Judged]:
    comparators = [arm for arm in given.comparison.arms if _is(arm, claim.comparator)]
    if claim.comparator == "ddp" and given.baseline.runs[0].strategy == "ddp":
        comparators = [given.baseline]
    elif claim.headline in TIME and comparators and given.baseline not in comparators:
        comparators.append(given.baseline)
    found: list[Judged] = []
    for comparator in comparators:
        rebased = given if comparator is given.baseline else answer(given.comparison, against=comparator)
        if rebased is None:
            continue
        for line in rebased.lines:
            if _is(line.arm, claim.arm) and line.arm is not comparator:
                found.append(_judged(claim, rebased, line))
    return found


def _judged(claim: records.Claim, given: Answer, line: Line) -> Judged:
    ledger = fairness(given.against.runs, line.arm.runs, headline=claim.headline)
    conditions = _conditions(claim, given, line, ledger)
    how = _no_loss if claim.direction == "not_worse" else _HEADLINES[claim.headline]
    verdict, measured = how(_scored(claim), given, line, conditions)
    return Judged(
        claim=claim,
        comparison=given.comparison,
        arm=line.arm.label,
        comparator=given.against.label,
        measured=measured,
        verdict=verdict,
        ledger=ledger,
    )


def _scored(claim: records.Claim) -> Claim:
    """The claim as the rules take it. Quality by itself goes by the rules of equal work."""
    headline = "fixed_work" if claim.headline == "quality" else claim.headline
    return Claim(
        value=claim.gain, headline=headline, quantifier=claim.quantifier, quality_margin=claim.quality_margin
    )


def _conditions(claim: records.Claim, given: Answer, line: Line, ledger: Ledger) -> Conditions:
    noise = given.target_floor if claim.headline == "time_to_target" else given.fixed_floor
    counts = [evaluations(arm) for arm in (given.against, line.arm)]
    differs, not_stated, other = _stated(claim, line.arm.runs[0])
    unequal = [f"not equal: {row.quantity} ({row.baseline}; {row.arm})" for row in ledger.forbidding]
    return Conditions(
        runs=min(len(given.against.counted), len(line.arm.counted)),
        clock_floor=noise.clock.floor if noise.clock else None,
        fresh_floor=noise.fresh.floor if noise.fresh else None,
        biased=noise.biased,
        evaluations=None if None in counts else min(count for count in counts if count is not None),
        bound=given.bound,
        bound_limit=given.bound_limit,
        own_conditions=not (differs or not_stated or other),
        differs=differs,
        not_stated=not_stated,
        forbidden=(*given.forbidden, *unequal),
    )


def _stated(claim: records.Claim, run: Run) -> tuple[tuple[str, ...], tuple[str, ...], tuple[str, ...]]:
    """(what differs of the machine, what the source does not state, what differs of the workload).

    Model and data do not make a claim untestable: it may be about more than its own workload, and the verdict
    says which one it is on.
    """
    cluster = run.config.get("cluster") or {}
    ranks = cluster.get("ranks_per_node")
    devices = ranks[0] if isinstance(ranks, list) and len(set(ranks)) == 1 else ranks
    here = {"nodes": cluster.get("nodes"), "devices_per_node": devices}
    stated = claim.conditions
    differs = [
        f"{key.replace('_', ' ')} {wanted}, here {value}"
        for key, value in here.items()
        if (wanted := getattr(stated, key)) is not None and wanted != value
    ]
    silent = [
        key for key in ("nodes", "devices_per_node", "device", "network") if getattr(stated, key) is None
    ]
    workload = {"model": run.name("model"), "dataset": run.name("dataset")}
    other = [
        f"{key} {wanted}, here {workload[key]}"
        for key in workload
        if (wanted := getattr(stated, key)) is not None and wanted.lower() != workload[key].lower()
    ]
    unsaid = (", ".join(key.replace("_", " ") for key in silent),) if silent else ()
    return tuple(differs), unsaid, tuple(other)


def _fixed_work(claim: Claim, given: Answer, line: Line, conditions: Conditions) -> tuple[Verdict, str]:
    """Time of the complete schedule, together with a quality that is not inferior."""
    time = _time(claim, line.fixed_work, conditions, line.holm[0])
    kept, points = _no_loss(claim, given, line, conditions)
    joined = quality.join(time, kept, quantifier=claim.quantifier)
    return joined, f"{words.interval(line.fixed_work)} in time, {points}"


def _no_loss(claim: Claim, given: Answer, line: Line, conditions: Conditions) -> tuple[Verdict, str]:
    found = line.quality
    made = quality.no_loss(
        claim,
        found.interval if found else None,
        conditions,
        diverged=line.diverged,
        forecast=found.with_runs if found else None,
    )
    return made, _points(line)


def _time_to_target(claim: Claim, given: Answer, line: Line, conditions: Conditions) -> tuple[Verdict, str]:
    found = line.to_target
    return _time(claim, found, conditions, line.holm[1]), f"{words.interval(found)} in time to target"


def _efficiency(claim: Claim, given: Answer, line: Line, conditions: Conditions) -> tuple[Verdict, str]:
    """Samples per second and device, of the runs that did all their work."""
    found = ratio.welch(_per_sample(given.against), _per_sample(line.arm), level=given.level)
    return _time(claim, found, conditions, None), f"{words.interval(found)} in samples per second and device"


def _quality(claim: Claim, given: Answer, line: Line, conditions: Conditions) -> tuple[Verdict, str]:
    found = line.quality
    made = quality.better(
        claim,
        found.interval if found else None,
        conditions,
        fresh_difference=given.fresh_points,
        diverged=line.diverged,
        forecast=found.with_runs if found else None,
    )
    return made, _points(line)


def _quality_at_time(claim: Claim, given: Answer, line: Line, conditions: Conditions) -> tuple[Verdict, str]:
    """Accuracy of the last evaluation up to the comparator's median time of the whole schedule."""
    spent = [run.train_s for run in given.against.complete if run.train_s]
    if not spent:
        return Verdict(word="no verdict", reasons=("no run of the comparator did all its work",)), ""
    limit_s = median(spent)
    base, arm = (_points_at(one.counted, limit_s) for one in (given.against, line.arm))
    found = quality.difference(base, arm, level=given.level)
    steps = ratio.welch(_per_sample(given.against), _per_sample(line.arm), level=given.level)
    made = quality.quality_at_time(
        claim,
        found.interval if found else None,
        conditions,
        fresh_difference=given.fresh_points,
        step_ratio=steps.interval if steps else None,
        diverged=line.diverged,
        forecast=found.with_runs if found else None,
    )
    said = f"{found.estimate.difference:+.2f} points" if found else "no difference"
    return made, f"{said} at equal time, {words.interval(steps)} in time per sample"


_HEADLINES = {
    "fixed_work": _fixed_work,
    "time_to_target": _time_to_target,
    "efficiency": _efficiency,
    "quality": _quality,
    "quality_at_time": _quality_at_time,
}


def _time(claim: Claim, found: Ratio | None, conditions: Conditions, holm: float | None) -> Verdict:
    made = decide.verdict(
        claim,
        found.interval if found else None,
        conditions,
        forecast=found.with_runs if found else None,
    )
    gains = made.word in ("reproduced", "partly", "supported") or decide.A_GAIN in made.remarks
    return decide.corrected(made, holm) if gains and holm is not None else made


def _is(arm: Arm, name: str) -> bool:
    """Whether an arm is what a claim calls `name`: by the study's name, its strategy, or its meaning."""
    run = arm.runs[0]
    if run.role:
        return False
    settings = run.config.get("strategy") or {}
    if name == "plain_mean":
        return run.strategy == "heterogeneous" and settings.get("weighting") == "uniform"
    plain = run.strategy == name and settings.get("weighting") != "uniform"
    return run.arm_name == name or plain


def _per_sample(arm: Arm) -> Times:
    """Seconds of all devices a sample, of the runs that did all their work."""
    found: list[float] = []
    for run in arm.complete:
        cluster = run.config.get("cluster") or {}
        ranks = cluster.get("ranks_per_node")
        nodes = int(cluster.get("nodes") or 1)
        devices = sum(ranks) if isinstance(ranks, list) and len(ranks) == nodes else nodes * _first(ranks)
        if run.samples_per_s:
            found.append(devices / run.samples_per_s)
    return Times(tuple(found))


def _first(ranks: object) -> int:
    value = ranks[0] if isinstance(ranks, list) and ranks else ranks
    return value if isinstance(value, int) else 1


def _points_at(runs: Sequence[Run], limit_s: float) -> list[float]:
    found = (
        quality.last_up_to(
            [row["train_s"] for row in run.evaluations],
            [row.get("accuracy", float("nan")) for row in run.evaluations],
            limit_s,
        )
        for run in runs
    )
    return [100 * value for value in found if value is not None and not math.isnan(value)]


def _points(line: Line) -> str:
    if line.quality is None:
        return "no difference of accuracy"
    ends = line.quality.interval
    return f"{line.quality.estimate.difference:+.2f} points [{ends.low:+.2f}, {ends.high:+.2f}]"
