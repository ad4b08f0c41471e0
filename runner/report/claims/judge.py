"""Verdicts on the papers' claims from the runs of a study: one per claim, arm and configuration.

A claim is judged by its own headline and against its own comparator; one about time also against the baseline
of the study, where that is another arm. Every verdict is computed anew from the run directories. Source:
docs/method.md, "Headlines" and "Verdict on a claim"; the rules are in `runner/report/statistics/`.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from statistics import median

from .. import words
from ..data.arms import Arm, Comparison
from ..data.load import Run
from ..statistics import quality, verdict
from ..statistics.several_arms import Family
from ..statistics.verdict import Conditions, Hypothesis, Verdict
from ..statistics.welch import FEWEST_RUNS, Estimate, Interval, Ratio
from . import arm_speedup, recorded
from .arm_speedup import ArmSpeedup, evaluations
from .bounds import ceiling_of
from .core_efficiency import headroom
from .fairness import ALONE, FairnessRow, by_design, in_words
from .paper_claims import Claim
from .speedups import Speedups

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
    sides = f"{claim.arm}, {claim.comparator} and a baseline (ddp or study.baseline)"
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
    given = _Case(claim=hypothesis, study=study, line=line, conditions=conditions)
    made, measured = _by_headline(claim, given)
    if study.exploratory and made.word != "no verdict":
        reasons = (*made.reasons, f"exploratory: {study.exploratory}")
        made = replace(made, remarks=(*made.remarks, "exploratory"), reasons=reasons)
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
    # A bound of communication does not include idle cores. Where computing is modelled none idles.
    if claim.headline == "efficiency" and not all(recorded.paced(run) for run in study.against.runs):
        bound = headroom(study.comparison, study.against, noise.floor or 0.0)
    else:
        bound = ceiling_of(study.bound, line.arm, to_target=claim.headline == "time_to_target")
    any_ddp = study.against is not study.baseline or (
        claim.comparator != "ddp" and _is(study.against, claim.comparator)
    )
    # How many samples a second a machine does has nothing to do with what is learnt.
    untrained = study.guard.untrained if claim.headline != "efficiency" else ""
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
    # A claim that names its comparator needs no strong baseline.
    named = "baseline strong" if study.against is not study.baseline else ""
    return [
        (check.name, f"{label}: {why}")
        for check in study.checks
        for label in dict.fromkeys((arm.label, study.against.label, *study.baselines))
        if check.name != named and (why := check.forbids.get(label))
        if why != ALONE or claim.headline != "efficiency"
    ]


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
    silent = ", ".join(key for key, value in sought.items() if value is None)
    workload = {key: run.name(key).lower() for key in ("model", "dataset")}
    wanted = {key: value.lower() if (value := getattr(stated, key)) else None for key in workload}
    if claim.headline != "efficiency":
        workload["metric"], wanted["metric"] = run.judged_by.key, claim.metric
    machine, work = (
        tuple(
            f"{key} {said}, here {our[key]}" for key, said in theirs.items() if said not in (None, our[key])
        )
        for theirs, our in ((claimed, here), (wanted, workload))
    )
    return machine, (silent,) if silent else (), work


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

    def time(self, of: Value, *, verdicts: int = 1) -> Verdict:
        """The verdict on a ratio; `verdicts`: how many a joined one is made of."""
        ends, family = self._estimates(of, verdicts)
        return verdict.ratio_verdict(self.claim, ends, self.conditions, family=family)

    def no_loss(self, *, verdicts: int = 1) -> Verdict:
        """Whether the final metric is no worse than the margin allows."""
        ends, family = self._estimates(lambda each: each.quality, verdicts)
        diverged = self.line.diverged
        return quality.no_loss(self.claim, ends, self.conditions, diverged=diverged, family=family)

    def better(self, of: Value) -> Verdict:
        """Whether a difference in points is larger than that of two baselines."""
        ends, family = self._estimates(of, 1)
        return quality.better(
            self.claim,
            ends,
            self.conditions,
            fresh_difference=self.study.fresh_points,
            diverged=self.line.diverged,
            family=family,
        )

    def _estimates(self, of: Value, verdicts: int) -> tuple[Interval | None, Family | None]:
        """The interval of the line, and its estimate with those of all other arms; None if it has none."""
        own, others = of(self.line), (each for each in self.study.lines if each is not self.line)
        if own is None:
            return None, None
        known = [estimate for each in others if (estimate := of(each)) is not None]
        return own.interval, Family(own=own, others=known, verdicts=verdicts)


def _by_headline(claim: Claim, given: _Case) -> tuple[Verdict, str]:
    """The verdict by the claim's own headline, and the measured value in words."""
    line = given.line
    match claim.headline, claim.direction:
        case "quality", "not_worse":
            return given.no_loss(), _points(line)
        case "quality", _:
            return given.better(lambda each: each.quality), _points(line)
        case "quality_at_time", _:
            return _quality_at_time(given)
        case "time_to_target", _:
            made = given.time(lambda each: each.to_target)
            return made, f"{words.interval(line.to_target)} in time to target"
        case "efficiency", _:
            # Of the runs that did all their work; fairness requires the same machines.
            made = given.time(lambda each: arm_speedup.rates(given.study.against, each.arm))
            rates = arm_speedup.rates(given.study.against, line.arm)
            return made, f"{words.interval(rates)} in samples per second"
        case _:
            time = given.time(lambda each: each.fixed_work, verdicts=2)
            joined = quality.join(time, given.no_loss(verdicts=2), quantifier=claim.quantifier)
            return joined, f"{words.interval(line.fixed_work)} in time, {_points(line)}"


def _quality_at_time(given: _Case) -> tuple[Verdict, str]:
    """The metric of the last evaluation up to the comparator's median time of the whole schedule."""
    against, arm = given.study.against, given.line.arm
    spent = [run.train_s for run in against.complete if run.train_s]
    if not spent:
        return Verdict(word="no verdict", reasons=("no run of the comparator did all its work",)), ""
    limit_s = median(spent)
    base = _points_at(against.counted, limit_s)

    def points_of(each: ArmSpeedup) -> Estimate | None:
        return quality.difference(base, _points_at(each.arm.counted, limit_s), level=given.study.level)

    points, steps = points_of(given.line), arm_speedup.rates(against, arm)
    conditions = quality.at_equal_time(given.conditions, steps.interval if steps else None)
    text = f"{points.difference:+.2f} points" if points else "no difference"
    measured = f"{text} at equal time, {words.interval(steps)} in time per sample"
    return replace(given, conditions=conditions).better(points_of), measured


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
