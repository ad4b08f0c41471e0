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
from .fairness import FairnessRow, alone, by_design, in_words
from .paper_claims import Claim
from .speedups import ArmSpeedup, Speedups, evaluations

NO_ARM = "no arm here is about it"
TIME = ("fixed_work", "time_to_target", "efficiency")
NATIVE = "native"
EXPLORATORY = "exploratory"


@dataclass(frozen=True, kw_only=True)
class JudgedClaim:
    """A claim and the verdict on it from one arm; `arm` and `comparator` are labels. `measured`: in words.

    `fairness`: what both sides have in common, and what not. None with `verdict` "no verdict": nothing was
    compared. `conditions`: what the verdict was made of.
    """

    claim: Claim
    arm: str
    comparator: str
    verdict: Verdict
    comparison: Comparison | None = None
    measured: str = ""
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
        nothing = Verdict(word="no verdict", reasons=(_not_compared(claim, everything),))
        judged += verdicts or [
            JudgedClaim(claim=claim, verdict=nothing, arm=claim.arm, comparator=claim.comparator)
        ]
    return judged


def _not_compared(claim: Claim, comparisons: Sequence[Comparison]) -> str:
    here = [comparison for comparison in comparisons if not comparison.assumption]
    if not any(_is(arm, claim.arm) for comparison in here for arm in comparison.arms):
        return NO_ARM
    sides = words.listed(
        list(dict.fromkeys((claim.arm, claim.comparator, "a baseline (ddp or study.baseline)")))
    )
    return f"a ratio needs {FEWEST_RUNS} runs each of {sides} in one comparison"


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
    table = by_design(study.ledgers[line.arm.label], claim.headline)
    # Quality by itself goes by the rules of equal work.
    hypothesis = Hypothesis(
        value=claim.gain,
        headline="fixed_work" if claim.headline == "quality" else claim.headline,
        quantifier=claim.quantifier,
        quality_margin=claim.quality_margin,
    )
    conditions = _conditions(claim, study, line, table)
    measure = no_loss if claim.direction == "not_worse" else HEADLINES[claim.headline]
    made, measured = measure(_Case(claim=hypothesis, study=study, line=line, conditions=conditions))
    if study.exploratory and made.word != "no verdict":
        remarks, reasons = (*made.remarks, EXPLORATORY), (*made.reasons, f"exploratory: {study.exploratory}")
        made = replace(made, remarks=remarks, reasons=reasons)
    return JudgedClaim(
        claim=claim,
        comparison=study.comparison,
        arm=line.arm.label,
        comparator=study.against.label,
        measured=measured,
        verdict=verdict.within_reach(made, hypothesis, conditions.bound),
        fairness=table,
        conditions=conditions,
    )


def _conditions(claim: Claim, study: Speedups, line: ArmSpeedup, table: list[FairnessRow]) -> Conditions:
    noise = study.target_floor if claim.headline == "time_to_target" else study.fixed_floor
    counts = [evaluations(arm) for arm in (study.against, line.arm)]
    differs, not_stated, other = _stated(claim, line.arm.runs[0])
    bound = _bound(claim, study, line, noise.floor or 0.0)
    any_ddp = study.against is not study.baseline or (
        claim.comparator != "ddp" and _is(study.against, claim.comparator)
    )
    # How many samples a second a machine does has nothing to do with what is learnt.
    untrained = study.guard.untrained if study.guard and claim.headline != "efficiency" else ""
    by_checks = _by_checks(claim, study, line.arm)
    forbidden = (
        *(why for name, why in by_checks if name == "records intact"),
        *study.forbidden,
        *([untrained] if untrained else []),
        *(() if any_ddp else study.wrong),
        *([bound.impossible] if bound.impossible else []),
        *(why for arm in (study.against, line.arm) if (why := _no_native(claim, arm))),
        *study.reasons(study.against, line.arm),
        *([unequal] if (unequal := in_words(table)) else []),
    )
    return Conditions(
        runs=min(len(study.against.counted), len(line.arm.counted)),
        noise=noise,
        evaluations=None if None in counts else min(count for count in counts if count is not None),
        bound=bound if claim.gain is not None else replace(bound, unknown=""),
        own_conditions=not (differs or not_stated or other),
        differs=differs,
        not_stated=not_stated,
        forbidden=forbidden or tuple(why for _, why in by_checks),
    )


def _by_checks(claim: Claim, study: Speedups, arm: Arm) -> list[tuple[str, str]]:
    """Names of the checks of the study that forbid a verdict on this pair of arms, and why."""
    found = [
        (check.name, label, check.forbids[label])
        for check in study.checks
        for label in dict.fromkeys((arm.label, study.against.label, *study.baselines))
        if label in check.forbids
    ]
    # A claim that names its comparator needs no strong baseline.
    named = "baseline strong" if study.against is not study.baseline else ""
    return [
        (name, f"{label}: {why}")
        for name, label, why in found
        if name != named and why != alone(claim.headline)
    ]


def _bound(claim: Claim, study: Speedups, line: ArmSpeedup, floor: float) -> Bound:
    """What a claim with that headline cannot exceed on this machine; `floor`: the study's noise, m."""
    # A bound of communication does not include idle cores. Where computing is modelled none idles.
    if claim.headline == "efficiency" and not all(recorded.paced(run) for run in study.against.runs):
        return headroom(study.comparison, study.against, floor)
    return study.ceiling(line.arm, to_target=claim.headline == "time_to_target")


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
    sought = {**claimed, "device": stated.device, "network": stated.network}
    silent = [key for key, value in sought.items() if value is None]
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
    """Whether an arm is what a claim calls `name`: by the study's name, its strategy, or its meaning.

    The name of a built-in strategy means that strategy, whatever the study calls its arms.
    """
    run = arm.runs[0]
    if run.role or not run.may_be_called(name):
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


Value = Callable[[ArmSpeedup], Ratio | Estimate | None]


@dataclass(frozen=True, kw_only=True)
class _Case:
    """What a headline is judged by: the claim as the rules see it, and the arm's line of the study."""

    claim: Hypothesis
    study: Speedups
    line: ArmSpeedup
    conditions: Conditions

    def family(self, of: Value, *, verdicts: int = 1) -> Family | None:
        """The estimate `of` the line and those of all other arms; None where the line has none."""
        own, others = of(self.line), (each for each in self.study.lines if each is not self.line)
        known = [estimate for each in others if (estimate := of(each)) is not None]
        return Family(own=own, others=known, verdicts=verdicts) if own else None


Made = tuple[Verdict, str]
"""A verdict, and the measured value in words."""


def fixed_work(case: _Case) -> Made:
    """Time of the complete schedule, together with a quality that is not inferior."""
    time = _time(case, lambda each: each.fixed_work, verdicts=2)
    kept = _no_loss(case, verdicts=2)
    joined = quality.join(time, kept, quantifier=case.claim.quantifier)
    return joined, f"{words.interval(case.line.fixed_work)} in time, {_points(case.line)}"


def no_loss(case: _Case) -> Made:
    """Whether the final metric is no worse than the margin allows."""
    return _no_loss(case), _points(case.line)


def better(case: _Case) -> Made:
    """Whether the final metric is better than two baselines differ by."""
    return _better(case, lambda each: each.quality), _points(case.line)


def time_to_target(case: _Case) -> Made:
    """Time to the crossing of the target."""
    made = _time(case, lambda each: each.to_target)
    return made, f"{words.interval(case.line.to_target)} in time to target"


def efficiency(case: _Case) -> Made:
    """Samples per second of the runs that did all their work; fairness requires the same machines."""

    def rates(each: ArmSpeedup) -> Ratio | None:
        return speedups.rates(case.study.against, each.arm)

    return _time(case, rates), f"{words.interval(rates(case.line))} in samples per second"


def quality_at_time(case: _Case) -> Made:
    """The metric of the last evaluation up to the comparator's median time of the whole schedule."""
    against, arm = case.study.against, case.line.arm
    spent = [run.train_s for run in against.complete if run.train_s]
    if not spent:
        return Verdict(word="no verdict", reasons=("no run of the comparator did all its work",)), ""
    limit_s = median(spent)
    base = _points_at(against.counted, limit_s)

    def points_of(each: ArmSpeedup) -> Estimate | None:
        return quality.difference(base, _points_at(each.arm.counted, limit_s), level=case.study.level)

    points, steps = points_of(case.line), speedups.rates(against, arm)
    conditions = quality.at_equal_time(case.conditions, steps.interval if steps else None)
    text = f"{points.difference:+.2f} points" if points else "no difference"
    measured = f"{text} at equal time, {words.interval(steps)} in time per sample"
    return _better(replace(case, conditions=conditions), points_of), measured


HEADLINES: dict[str, Callable[[_Case], Made]] = {
    "fixed_work": fixed_work,
    "time_to_target": time_to_target,
    "efficiency": efficiency,
    "quality": better,
    "quality_at_time": quality_at_time,
}


def _no_loss(case: _Case, *, verdicts: int = 1) -> Verdict:
    line, family = case.line, case.family(lambda each: each.quality, verdicts=verdicts)
    return quality.no_loss(case.claim, _ends(family), case.conditions, diverged=line.diverged, family=family)


def _better(case: _Case, of: Value) -> Verdict:
    family = case.family(of)
    return quality.better(
        case.claim,
        _ends(family),
        case.conditions,
        fresh_difference=case.study.fresh_points,
        diverged=case.line.diverged,
        family=family,
    )


def _time(case: _Case, of: Value, *, verdicts: int = 1) -> Verdict:
    family = case.family(of, verdicts=verdicts)
    return verdict.ratio_verdict(case.claim, _ends(family), case.conditions, family=family)


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
