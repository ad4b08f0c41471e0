"""Verdicts on the papers' claims from the runs of a study: one per claim, arm and configuration.

A claim is judged by its own headline and against its own comparator; one about time also against the baseline
of the study, where that is another arm. Every verdict is computed anew from the run directories. Source:
docs/method.md, "Headlines" and "Verdict on a claim"; the rules are in `runner/report/statistics/`.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from operator import attrgetter
from statistics import median
from typing import Any

from .. import words
from ..data.arms import Arm, Comparison
from ..data.load import Run, value_at
from ..statistics import quality, verdict
from ..statistics.several_arms import Family
from ..statistics.verdict import Conditions, Hypothesis, Verdict
from ..statistics.welch import FEWEST_RUNS, Estimate, Ratio
from . import recorded
from .arm_speedup import ArmSpeedup, evaluations, rates
from .bounds import ceiling_of
from .core_efficiency import headroom
from .fairness import FairnessRow, by_design, in_words
from .paper_claims import Claim
from .speedups import Speedups

NO_ARM = "no arm here is about it"
TIME = ("fixed_work", "time_to_target", "efficiency")
NATIVE = "native"
Value = Callable[[ArmSpeedup], Ratio | Estimate | None]


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


def _in_comparison(claim: Claim, study: Speedups) -> Iterator[JudgedClaim]:
    comparators = [arm for arm in study.comparison.arms if _is(arm, claim.comparator)]
    if claim.comparator == "ddp" and study.baseline.runs[0].strategy == "ddp":
        comparators = [study.baseline]
    elif claim.headline in TIME and comparators:
        # Besides the named one, the better ddp: the baseline, or what beat it.
        faster = [arm for arm in study.comparison.arms if arm.label in study.faster]
        comparators += [arm for arm in (study.baseline, *faster) if arm not in comparators]
    for over in map(study.over, comparators):
        if over:
            yield from (_judged(claim, over, line) for line in over.lines if _is(line.arm, claim.arm))


def _is(arm: Arm, name: str) -> bool:
    """Whether an arm is what a claim calls `name`: by the study's name, its strategy, or its meaning.

    The name of a built-in strategy means that strategy, whatever the study calls its arms.
    """
    run = arm.runs[0]
    if run.role or not run.may_be_called(name):
        return False
    uniform = value_at(run.config, "strategy", "weighting") == "uniform"
    if name == "plain_mean":
        return run.strategy == "heterogeneous" and uniform
    return (run.tuned or run.arm_name) == name or (run.strategy == name and not uniform)


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
    made, measured = _by_headline(claim, hypothesis, study, line, conditions)
    if made.word == "smaller here" and (reasons := verdict.out_of_reach(hypothesis, conditions.bound)):
        made = Verdict(word="not testable here", reasons=(*reasons, *made.reasons))
    if study.exploratory and made.word != "no verdict":
        reasons = (*made.reasons, f"exploratory: {study.exploratory}")
        made = replace(made, remarks=(*made.remarks, "exploratory"), reasons=reasons)
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
    sides, to_target = (study.against, line.arm), claim.headline == "time_to_target"
    noise = study.target_floor if to_target else study.fixed_floor
    counts = [count for arm in sides if (count := evaluations(arm)) is not None]
    # A bound of communication does not include idle cores. Where computing is modelled none idles.
    if claim.headline == "efficiency" and not all(map(recorded.paced, study.against.runs)):
        bound = headroom(study.comparison, study.against, noise.floor or 0.0)
    else:
        bound = ceiling_of(study.bound, line.arm, to_target=to_target)
    differs, not_stated, other_work = _stated(claim, line.arm.runs[0])
    reasons = [
        *_forbidden(claim, study, line.arm),
        bound.impossible,
        *(_no_native(claim, arm) for arm in sides),
        # That of the baseline is the check "fair".
        in_words(table) if study.against is not study.baseline else "",
    ]
    return Conditions(
        runs=min(len(arm.counted) for arm in sides),
        noise=noise,
        evaluations=min(counts) if len(counts) == len(sides) else None,
        bound=bound if claim.gain is not None else replace(bound, unknown=""),
        own_conditions=not (differs or not_stated or other_work),
        differs=differs,
        not_stated=not_stated,
        forbidden=tuple(filter(None, reasons)),
        diverged=line.diverged,
    )


def _forbidden(claim: Claim, study: Speedups, arm: Arm) -> Iterator[str]:
    """Why the checks of the study allow no verdict on the claim from these two arms."""
    over_another = study.against is not study.baseline
    named = claim.comparator != "ddp" and _is(study.against, claim.comparator)
    spared = {
        "efficiency": claim.headline == "efficiency",
        "other comparators": over_another,
        "named comparators": over_another or named,
    }
    labels = {arm.label, study.against.label, *study.baselines}
    for forbidden in study.forbidden:
        if forbidden.label in labels and not spared.get(forbidden.spares, False):
            yield forbidden.sentence


def _stated(claim: Claim, run: Run) -> tuple[tuple[str, ...], tuple[str, ...], bool]:
    """(what differs of the machine, what the source does not state, whether the workload is another).

    Model, data and metric do not make a claim untestable: it may be about more than its own workload, and the
    verdict names the workload. Device and network are words of the paper, which no record can be compared
    with.
    """
    stated, ranks = claim.conditions, value_at(run.config, "cluster", "ranks_per_node")
    devices = ranks[0] if isinstance(ranks, list) and len(set(ranks)) == 1 else ranks
    here = {"nodes": value_at(run.config, "cluster", "nodes"), "devices per node": devices}
    machine = {"nodes": stated.nodes, "devices per node": stated.devices_per_node}
    differs = tuple(
        f"{key} {claimed}, here {here[key]}"
        for key, claimed in machine.items()
        if claimed not in (None, here[key])
    )
    sought = {**machine, "device": stated.device, "network": stated.network}
    silent = ", ".join(key for key, claimed in sought.items() if claimed is None)
    workload = [(stated.model, run.name("model")), (stated.dataset, run.name("dataset"))]
    if claim.headline != "efficiency":
        workload.append((claim.metric, run.judged_by.key))
    other_work = any(claimed and claimed.lower() != used.lower() for claimed, used in workload)
    return differs, (silent,) if silent else (), other_work


def _no_native(claim: Claim, arm: Arm) -> str:
    """Why an arm that a claim calls native is not ddp with one process a node and all its cores."""
    if claim.comparator != NATIVE or not _is(arm, NATIVE):
        return ""
    run = arm.runs[0]
    asked = value_at(run.config, "cluster", "ranks_per_node")
    ranks = sorted(set(asked if isinstance(asked, list) else [asked or 1]))
    if run.strategy != "ddp" or ranks != [1]:
        processes = " or ".join(map(str, ranks))
        return f"{arm.label} is not native: {run.strategy}, {processes} processes a node; it is ddp with one"
    idle = next(filter(None, map(recorded.idle_cores, arm.counted)), "")
    return f"{arm.label} is not native: {idle}; one process a node is to use all its cores" if idle else ""


def _by_headline(
    claim: Claim, hypothesis: Hypothesis, study: Speedups, line: ArmSpeedup, conditions: Conditions
) -> tuple[Verdict, str]:
    """The verdict by the claim's own headline, and the measured value in words."""

    def by(rule: Callable[..., Verdict], value: Value, *, verdicts: int = 1, **more: Any) -> Verdict:
        """The verdict of a rule of `statistics` on `value`; `verdicts`: how many a joined one is made of."""
        own = value(line)
        others = [each for one in study.lines if one is not line and (each := value(one)) is not None]
        family = Family(own=own, others=others, verdicts=verdicts) if own else None
        given = {"conditions": conditions, "family": family, **more}
        return rule(hypothesis, own and own.interval, **given)

    final = attrgetter("quality")
    no_loss = partial(by, quality.no_loss, final)
    better = partial(by, quality.better, fresh_difference=study.fresh_points)
    match claim.headline, claim.direction:
        case "quality", "not_worse":
            return no_loss(), _points(line)
        case "quality", _:
            return better(final), _points(line)
        case "quality_at_time", _:
            spent = [run.train_s for run in study.against.complete if run.train_s]
            if not spent:
                reasons = ("no run of the comparator did all its work",)
                return Verdict(word="no verdict", reasons=reasons), ""
            points, steps = _points_at(study, median(spent)), rates(study.against, line.arm)
            # Of two arms of one strategy, virtual time has the same error on both sides.
            one_strategy = study.against.runs[0].strategy == line.arm.runs[0].strategy
            compared = steps.simulated if steps and one_strategy else steps
            made = better(
                points, conditions=quality.at_equal_time(conditions, compared and compared.interval)
            )
            found = points(line)
            measured = f"{found.difference:+.2f} points" if found else "no difference"
            return made, f"{measured} at equal time, {words.interval(steps)} in time per sample"
        case "time_to_target", _:
            made = by(verdict.ratio_verdict, attrgetter("to_target"))
            return made, f"{words.interval(line.to_target)} in time to target"
        case "efficiency", _:
            # Of the runs that did all their work; fairness requires the same machines.
            made = by(verdict.ratio_verdict, lambda each: rates(study.against, each.arm))
            return made, f"{words.interval(rates(study.against, line.arm))} in samples per second"
        case _:
            time = by(verdict.ratio_verdict, attrgetter("fixed_work"), verdicts=2)
            joined = quality.join(time, no_loss(verdicts=2), quantifier=claim.quantifier)
            return joined, f"{words.interval(line.fixed_work)} in time, {_points(line)}"


def _points_at(study: Speedups, limit_s: float) -> Callable[[ArmSpeedup], Estimate | None]:
    """The difference of the metric of the last evaluation up to `limit_s` of training."""

    def points(arm: Arm) -> list[float]:
        values = (quality.last_up_to(run.points("train_s"), limit_s) for run in arm.counted)
        return [100 * value for value in values if value is not None and not math.isnan(value)]

    base = points(study.against)
    return lambda line: quality.difference(base, points(line.arm), level=study.level)


def _points(line: ArmSpeedup) -> str:
    if line.quality is None:
        return f"no difference of {line.arm.runs[0].judged_by.name}"
    ends = line.quality.interval
    return f"{line.quality.difference:+.2f} points [{ends.low:+.2f}, {ends.high:+.2f}]"
