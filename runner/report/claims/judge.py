"""Verdicts on the papers' claims from the runs of a study: one per claim, arm and configuration.

A claim is judged by its own headline and against its own comparator; one about time also against the baseline
of the study, where that is another arm. Every verdict is computed anew from the run directories. Source:
docs/method.md, "Verdict on a claim"; the rules are in `runner/report/statistics/`.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from .. import words
from ..data.arms import Arm, Comparison
from ..data.load import Run
from ..statistics.ratio import FEWEST_RUNS, Ratio
from ..statistics.verdict import Conditions, Hypothesis, Verdict
from . import headlines, recorded
from .fairness import BY_DESIGN, FairnessTable, fairness
from .paper_claims import Claim
from .speedups import ArmSpeedup, Speedups, evaluations

NO_ARM = "no arm here is about it"
TIME = ("fixed_work", "time_to_target", "efficiency")
NATIVE = "native"


@dataclass(frozen=True, kw_only=True)
class JudgedClaim:
    """A claim and the verdict on it from one arm; `arm` and `comparator` are labels. `measured`: in words.

    `fairness`: what both sides have in common, and what not. None with `verdict` "no verdict": nothing was
    compared. `ratio`, `conditions`: what the verdict was made of.
    """

    claim: Claim
    comparison: Comparison | None
    arm: str
    comparator: str
    measured: str
    verdict: Verdict
    fairness: FairnessTable | None = None
    ratio: Ratio | None = None
    conditions: Conditions | None = None


def judge(
    claims: Iterable[Claim], all_speedups: Sequence[Speedups], comparisons: Sequence[Comparison] = ()
) -> list[JudgedClaim]:
    """All verdicts that `all_speedups` allow, in the order of the claims; other claims with the reason.

    comparisons: all that there are; those of `all_speedups` are among them.
    """
    cached = [_Pairs(each) for each in all_speedups]
    everything = comparisons or [each.comparison for each in all_speedups]
    judged: list[JudgedClaim] = []
    for claim in claims:
        verdicts = [verdict for pairs in cached for verdict in _in_comparison(claim, pairs)]
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
    """Why no comparison is about a claim."""
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


@dataclass
class _Pairs:
    """Speed-ups and fairness tables of the pairs of arms of a comparison: each made once for all claims."""

    speedups: Speedups
    _over: dict[str, Speedups | None] = field(default_factory=dict)
    _tables: dict[tuple[str, str, str], FairnessTable] = field(default_factory=dict)

    def over(self, comparator: Arm) -> Speedups | None:
        if comparator.label not in self._over:
            self._over[comparator.label] = self.speedups.over(comparator)
        return self._over[comparator.label]

    def fairness(self, comparator: Arm, arm: Arm, headline: str) -> FairnessTable:
        """`headline` matters only where it allows differences."""
        allowing = headline if headline in BY_DESIGN else ""
        key = (comparator.label, arm.label, allowing)
        if key not in self._tables:
            self._tables[key] = fairness(comparator.runs, arm.runs, headline=allowing)
        return self._tables[key]


def _in_comparison(claim: Claim, pairs: _Pairs) -> list[JudgedClaim]:
    speedups = pairs.speedups
    comparators = [arm for arm in speedups.comparison.arms if _is(arm, claim.comparator)]
    if claim.comparator == "ddp" and speedups.baseline.runs[0].strategy == "ddp":
        comparators = [speedups.baseline]
    elif claim.headline in TIME and comparators:
        # Besides the named one, the better ddp: the baseline, or what beat it.
        comparators += [arm for arm in (speedups.baseline, *speedups.faster) if arm not in comparators]
    judged: list[JudgedClaim] = []
    for comparator in comparators:
        over = pairs.over(comparator)
        for line in over.lines if over else ():
            if over and _is(line.arm, claim.arm) and line.arm is not comparator:
                table = pairs.fairness(comparator, line.arm, claim.headline)
                judged.append(_judged(claim, over, line, table))
    return judged


def _judged(claim: Claim, speedups: Speedups, line: ArmSpeedup, table: FairnessTable) -> JudgedClaim:
    conditions = _conditions(claim, speedups, line, table)
    headline = headlines.no_loss if claim.direction == "not_worse" else headlines.HEADLINES[claim.headline]
    measured = headline(_hypothesis(claim), speedups, line, conditions)
    return JudgedClaim(
        claim=claim,
        comparison=speedups.comparison,
        arm=line.arm.label,
        comparator=speedups.against.label,
        measured=measured.words,
        verdict=measured.verdict,
        fairness=table,
        ratio=measured.ratio,
        conditions=conditions,
    )


def _hypothesis(claim: Claim) -> Hypothesis:
    """The claim as the rules take it. Quality by itself goes by the rules of equal work."""
    headline = "fixed_work" if claim.headline == "quality" else claim.headline
    return Hypothesis(
        value=claim.gain, headline=headline, quantifier=claim.quantifier, quality_margin=claim.quality_margin
    )


def _conditions(claim: Claim, speedups: Speedups, line: ArmSpeedup, table: FairnessTable) -> Conditions:
    noise = speedups.target_floor if claim.headline == "time_to_target" else speedups.fixed_floor
    counts = [evaluations(arm) for arm in (speedups.against, line.arm)]
    differs, not_stated, other = _stated(claim, line.arm.runs[0])
    most = headlines.upper_limit(claim.headline, speedups, noise.floor)
    any_ddp = speedups.against is not speedups.baseline or _named(claim, speedups.against)
    unequal = [
        f"not equal: {row.quantity} ({row.baseline}; {row.arm})"
        if row.equal is False
        else f"{row.quantity}: {row.wrong}"
        for row in table.forbidding
    ]
    return Conditions(
        runs=min(len(speedups.against.counted), len(line.arm.counted)),
        clock_floor=noise.clock.value if noise.clock else None,
        fresh_floor=noise.fresh.value if noise.fresh else None,
        fresh_unknown=noise.unknown,
        biased=noise.biased,
        evaluations=None if None in counts else min(count for count in counts if count is not None),
        bound=most.value,
        bound_limit=most.limit,
        uneven=most.uneven,
        headroom=most.headroom,
        bound_unknown=most.unknown if claim.gain is not None else "",
        own_conditions=not (differs or not_stated or other),
        differs=differs,
        not_stated=not_stated,
        forbidden=(
            *speedups.forbidden,
            *(() if any_ddp else speedups.wrong),
            *([most.impossible] if most.impossible else []),
            *(why for arm in (speedups.against, line.arm) if (why := _no_native(claim, arm))),
            *speedups.reasons(speedups.against, line.arm),
            *unequal,
        ),
    )


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
    differs, silent = _differences(claimed, here)
    silent = (*silent, *(key for key in ("device", "network") if getattr(stated, key) is None))
    workload = {key: run.name(key).lower() for key in ("model", "dataset")}
    wanted = {key: value.lower() if (value := getattr(stated, key)) else None for key in workload}
    if claim.headline != "efficiency":
        workload["metric"], wanted["metric"] = run.judged_by.key, claim.metric
    other, _ = _differences(wanted, workload)
    return differs, ((", ".join(silent),) if silent else ()), other


def _differences(
    claimed: Mapping[str, object], here: Mapping[str, object]
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """(what differs, what is not stated) of conditions; None: the source does not give it."""
    stated = {key: claimed.get(key) for key in here}
    differs = [
        f"{key} {value}, here {here[key]}" for key, value in stated.items() if value not in (None, here[key])
    ]
    return tuple(differs), tuple(key for key, value in stated.items() if value is None)


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


def _named(claim: Claim, arm: Arm) -> bool:
    """Whether the claim is about this comparator, and not about the better ddp, whichever that is."""
    return claim.comparator != "ddp" and _is(arm, claim.comparator)


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
