"""Verdicts on the papers' claims from the runs of a study: one per claim, arm and configuration.

A claim is judged by its own headline and against its own comparator; one about time also against the baseline
of the study, where that is another arm. Every verdict is computed anew from the run directories. Source:
docs/method.md, "Headlines" and "Verdict on a claim"; the rules are in `runner/report/statistics/`.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median

from .. import words
from ..data.arms import Arm, Comparison
from ..data.load import Run
from ..statistics import quality, verdict
from ..statistics.several_arms import Family
from ..statistics.verdict import Bound, Conditions, Hypothesis, Verdict
from ..statistics.welch import FEWEST_RUNS, Estimate, Interval, Ratio
from . import recorded, speedups
from .core_efficiency import headroom
from .fairness import FairnessRow, fairness, forbidding
from .paper_claims import Claim
from .speedups import ArmSpeedup, Speedups, evaluations

NO_ARM = "no arm here is about it"
TIME = ("fixed_work", "time_to_target", "efficiency")
NATIVE = "native"


@dataclass(frozen=True, kw_only=True)
class JudgedClaim:
    """A claim and the verdict on it from one arm; `arm` and `comparator` are labels. `measured`: in words.

    `fairness`: what both sides have in common, and what not. None with `verdict` "no verdict": nothing was
    compared. `conditions`: what the verdict was made of.
    """

    claim: Claim
    comparison: Comparison | None
    arm: str
    comparator: str
    measured: str
    verdict: Verdict
    fairness: list[FairnessRow] | None = None
    conditions: Conditions | None = None


def judge(
    claims: Iterable[Claim], all_speedups: Sequence[Speedups], comparisons: Sequence[Comparison] = ()
) -> list[JudgedClaim]:
    """All verdicts that `all_speedups` allow, in the order of the claims; other claims with the reason.

    comparisons: all that there are; those of `all_speedups` are among them.
    """
    everything = comparisons or [each.comparison for each in all_speedups]
    judged: list[JudgedClaim] = []
    for claim in claims:
        verdicts = [verdict for each in all_speedups for verdict in _in_comparison(claim, each)]
        judged += verdicts or [
            JudgedClaim(
                claim=claim,
                comparison=None,
                arm=claim.arm,
                comparator=claim.comparator,
                measured="",
                verdict=Verdict(word="no verdict", reasons=(_not_compared(claim, everything),)),
            )
        ]
    return judged


def _not_compared(claim: Claim, comparisons: Sequence[Comparison]) -> str:
    here = [(c, arm) for c in comparisons if not c.assumption for arm in c.arms if _is(arm, claim.arm)]
    if not here:
        return NO_ARM
    pairs = [(arm, other) for c, arm in here for other in c.arms if _is(other, claim.comparator)]
    if not pairs:
        return f"no {claim.comparator} was run beside {words.listed(sorted({arm.label for _, arm in here}))}"
    counts = {arm.label: len(arm.counted) for pair in pairs for arm in pair}
    few = [f"{words.count(runs, 'run')} of {label}" for label, runs in counts.items() if runs < FEWEST_RUNS]
    if few:
        return f"{words.listed(few)}, a ratio needs {FEWEST_RUNS}"
    return f"no baseline of {FEWEST_RUNS} runs, ddp or study.baseline, beside {words.listed(list(counts))}"


def _in_comparison(claim: Claim, study: Speedups) -> list[JudgedClaim]:
    comparators = [arm for arm in study.comparison.arms if _is(arm, claim.comparator)]
    if claim.comparator == "ddp" and study.baseline.runs[0].strategy == "ddp":
        comparators = [study.baseline]
    elif claim.headline in TIME and comparators:
        # Besides the named one, the better ddp: the baseline, or what beat it.
        comparators += [arm for arm in (study.baseline, *study.faster) if arm not in comparators]
    return [
        _judged(claim, over, line)
        for over in map(study.over, comparators)
        if over
        for line in over.lines
        if _is(line.arm, claim.arm)
    ]


def _judged(claim: Claim, study: Speedups, line: ArmSpeedup) -> JudgedClaim:
    table = fairness(study.against.runs, line.arm.runs, headline=claim.headline)
    # Quality by itself goes by the rules of equal work.
    hypothesis = Hypothesis(
        value=claim.gain,
        headline="fixed_work" if claim.headline == "quality" else claim.headline,
        quantifier=claim.quantifier,
        quality_margin=claim.quality_margin,
    )
    conditions = _conditions(claim, study, line, table)
    measure = no_loss if claim.direction == "not_worse" else HEADLINES[claim.headline]
    made, measured = measure(hypothesis, study, line, conditions)
    return JudgedClaim(
        claim=claim,
        comparison=study.comparison,
        arm=line.arm.label,
        comparator=study.against.label,
        measured=measured,
        verdict=made,
        fairness=table,
        conditions=conditions,
    )


def _conditions(claim: Claim, study: Speedups, line: ArmSpeedup, table: list[FairnessRow]) -> Conditions:
    noise = study.target_floor if claim.headline == "time_to_target" else study.fixed_floor
    counts = [evaluations(arm) for arm in (study.against, line.arm)]
    differs, not_stated, other = _stated(claim, line.arm.runs[0])
    bound = _bound(claim, study, noise.floor or 0.0)
    any_ddp = study.against is not study.baseline or (
        claim.comparator != "ddp" and _is(study.against, claim.comparator)
    )
    unequal = [
        f"not equal: {row.quantity} ({row.baseline}; {row.arm})"
        if row.equal is False
        else f"{row.quantity}: {row.wrong}"
        for row in forbidding(table)
    ]
    return Conditions(
        runs=min(len(study.against.counted), len(line.arm.counted)),
        noise=noise,
        evaluations=None if None in counts else min(count for count in counts if count is not None),
        bound=bound if claim.gain is not None else replace(bound, unknown=""),
        own_conditions=not (differs or not_stated or other),
        differs=differs,
        not_stated=not_stated,
        forbidden=(
            *study.forbidden,
            *(() if any_ddp else study.wrong),
            *([bound.impossible] if bound.impossible else []),
            *(why for arm in (study.against, line.arm) if (why := _no_native(claim, arm))),
            *study.reasons(study.against, line.arm),
            *unequal,
        ),
    )


def _bound(claim: Claim, study: Speedups, floor: float) -> Bound:
    """What a claim with that headline cannot exceed on this machine; `floor`: the study's noise, m."""
    # A bound of communication does not include idle cores. Where computing is modelled none idles.
    if claim.headline == "efficiency" and not all(recorded.paced(run) for run in study.against.runs):
        return headroom(study.comparison, study.against, floor)
    return study.bound


def _stated(claim: Claim, run: Run) -> tuple[tuple[str, ...], tuple[str, ...], tuple[str, ...]]:
    """(what differs of the machine, what the source does not state, what differs of the workload).

    Model, data and metric do not make a claim untestable: it may be about more than its own workload, and the
    verdict names the workload. Device and network are words of the paper, which no record can be compared
    with.
    """
    cluster = run.config.get("cluster") or {}
    ranks = cluster.get("ranks_per_node")
    devices = ranks[0] if isinstance(ranks, list) and len(set(ranks)) == 1 else ranks
    stated = claim.conditions
    here = {"nodes": cluster.get("nodes"), "devices per node": devices}
    claimed = {"nodes": stated.nodes, "devices per node": stated.devices_per_node}
    silent = [key for key, value in claimed.items() if value is None]
    silent += [key for key in ("device", "network") if getattr(stated, key) is None]
    workload = {key: run.name(key).lower() for key in ("model", "dataset")}
    wanted = {key: value.lower() if (value := getattr(stated, key)) else None for key in workload}
    if claim.headline != "efficiency":
        workload["metric"], wanted["metric"] = run.judged_by.key, claim.metric
    return (
        _differences(claimed, here),
        (", ".join(silent),) if silent else (),
        _differences(wanted, workload),
    )


def _differences(claimed: Mapping[str, object], here: Mapping[str, object]) -> tuple[str, ...]:
    """What differs from the conditions of a claim; None: the source does not give it."""
    return tuple(
        f"{key} {value}, here {here[key]}" for key, value in claimed.items() if value not in (None, here[key])
    )


def _is(arm: Arm, name: str) -> bool:
    """Whether an arm is what a claim calls `name`: by the study's name, its strategy, or its meaning."""
    run = arm.runs[0]
    if run.role:
        return False
    settings = run.config.get("strategy") or {}
    if name == "plain_mean":
        return run.strategy == "heterogeneous" and settings.get("weighting") == "uniform"
    plain = run.strategy == name and settings.get("weighting") != "uniform"
    return (run.tuned or run.arm_name) == name or plain


def _no_native(claim: Claim, arm: Arm) -> str:
    """Why an arm that a claim calls native is not ddp with one process a node and all its cores."""
    if claim.comparator != NATIVE or not _is(arm, NATIVE):
        return ""
    run = arm.runs[0]
    asked = (run.config.get("cluster") or {}).get("ranks_per_node")
    ranks = sorted(set(asked if isinstance(asked, list) else [asked or 1]))
    if run.strategy != "ddp" or ranks != [1]:
        processes = " or ".join(map(str, ranks))
        return f"{arm.label} is not native: {run.strategy}, {processes} processes a node; it is ddp with one"
    idle = next((threads for run in arm.counted if (threads := recorded.idle_cores(run))), "")
    return f"{arm.label} is not native: {idle}; one process a node is to use all its cores" if idle else ""


# The measurement behind each headline of a claim: its verdict, and the measured value in words.
Headline = Callable[[Hypothesis, Speedups, ArmSpeedup, Conditions], tuple[Verdict, str]]


def fixed_work(
    claim: Hypothesis, study: Speedups, line: ArmSpeedup, conditions: Conditions
) -> tuple[Verdict, str]:
    """Time of the complete schedule, together with a quality that is not inferior."""
    time = _time(claim, _family(study, line, lambda each: each.fixed_work, verdicts=2), conditions)
    kept = _no_loss(claim, study, line, conditions, verdicts=2)
    joined = quality.join(time, kept, quantifier=claim.quantifier)
    return joined, f"{words.interval(line.fixed_work)} in time, {_points(line)}"


def no_loss(
    claim: Hypothesis, study: Speedups, line: ArmSpeedup, conditions: Conditions
) -> tuple[Verdict, str]:
    """Whether the final metric is no worse than the margin allows."""
    return _no_loss(claim, study, line, conditions), _points(line)


def better(
    claim: Hypothesis, study: Speedups, line: ArmSpeedup, conditions: Conditions
) -> tuple[Verdict, str]:
    """Whether the final metric is better than two baselines differ by."""
    family = _family(study, line, lambda each: each.quality)
    return _better(claim, family, study, line, conditions), _points(line)


def time_to_target(
    claim: Hypothesis, study: Speedups, line: ArmSpeedup, conditions: Conditions
) -> tuple[Verdict, str]:
    """Time to the crossing of the target."""
    made = _time(claim, _family(study, line, lambda each: each.to_target), conditions)
    return made, f"{words.interval(line.to_target)} in time to target"


def efficiency(
    claim: Hypothesis, study: Speedups, line: ArmSpeedup, conditions: Conditions
) -> tuple[Verdict, str]:
    """Samples per second of the runs that did all their work; fairness requires the same machines."""
    family = _family(study, line, lambda each: speedups.rates(study.against, each.arm))
    rates = speedups.rates(study.against, line.arm)
    return _time(claim, family, conditions), f"{words.interval(rates)} in samples per second"


def quality_at_time(
    claim: Hypothesis, study: Speedups, line: ArmSpeedup, conditions: Conditions
) -> tuple[Verdict, str]:
    """The metric of the last evaluation up to the comparator's median time of the whole schedule."""
    spent = [run.train_s for run in study.against.complete if run.train_s]
    if not spent:
        return Verdict(word="no verdict", reasons=("no run of the comparator did all its work",)), ""
    limit_s = median(spent)
    base = _points_at(study.against.counted, limit_s)

    def points_of(each: ArmSpeedup) -> Estimate | None:
        return quality.difference(base, _points_at(each.arm.counted, limit_s), level=study.level)

    points = points_of(line)
    steps = speedups.rates(study.against, line.arm)
    conditions = quality.at_equal_time(conditions, steps.interval if steps else None)
    made = _better(claim, _family(study, line, points_of), study, line, conditions)
    text = f"{points.difference:+.2f} points" if points else "no difference"
    return made, f"{text} at equal time, {words.interval(steps)} in time per sample"


HEADLINES: dict[str, Headline] = {
    "fixed_work": fixed_work,
    "time_to_target": time_to_target,
    "efficiency": efficiency,
    "quality": better,
    "quality_at_time": quality_at_time,
}


def _no_loss(
    claim: Hypothesis, study: Speedups, line: ArmSpeedup, conditions: Conditions, *, verdicts: int = 1
) -> Verdict:
    family = _family(study, line, lambda each: each.quality, verdicts=verdicts)
    return quality.no_loss(claim, _ends(family), conditions, diverged=line.diverged, family=family)


def _better(
    claim: Hypothesis, family: Family | None, study: Speedups, line: ArmSpeedup, conditions: Conditions
) -> Verdict:
    return quality.better(
        claim,
        _ends(family),
        conditions,
        fresh_difference=study.fresh_points,
        diverged=line.diverged,
        family=family,
    )


def _time(claim: Hypothesis, family: Family | None, conditions: Conditions) -> Verdict:
    return verdict.ratio_verdict(claim, _ends(family), conditions, family=family)


def _family(
    study: Speedups,
    line: ArmSpeedup,
    of: Callable[[ArmSpeedup], Ratio | Estimate | None],
    *,
    verdicts: int = 1,
) -> Family | None:
    """The estimate `of` a line and of all other arms of the comparison; None where the line has none."""
    own = of(line)
    others = [other for each in study.lines if each is not line and (other := of(each)) is not None]
    return Family(own=own, others=others, verdicts=verdicts) if own else None


def _ends(family: Family | None) -> Interval | None:
    return family.own.interval if family else None


def _points_at(runs: Sequence[Run], limit_s: float) -> list[float]:
    values = (
        quality.last_up_to(
            [row["train_s"] for row in run.evaluations],
            [run.judged_by.of(row) for row in run.evaluations],
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
