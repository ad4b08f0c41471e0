"""Verdicts on the papers' claims, from the runs that lie there: one per claim, arm and configuration.

A claim is judged by its own headline and against its own comparator; one about time against the baseline of
the study too, where that is another arm.
Nothing is typed by hand: every verdict is computed anew from the run directories. Source: docs/method.md,
"Verdict on a claim"; the rules are in `runner/report/statistics/`.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from .. import words
from ..data.arms import Arm, Comparison
from ..data.load import Run
from ..statistics.ratio import FEWEST_RUNS
from ..statistics.verdict import Conditions, Hypothesis, Verdict
from . import measured, recorded
from . import paper_claims as records
from .fairness import BY_DESIGN, Ledger, fairness
from .judged import Judged
from .speedups import Answer, Line, evaluations, held_against

NO_ARM = "no arm here is about it"
TIME = ("fixed_work", "time_to_target", "efficiency")
NATIVE = "native"


def judge(
    claims: Iterable[records.Claim], answers: Sequence[Answer], comparisons: Sequence[Comparison] = ()
) -> list[Judged]:
    """All verdicts that `answers` allow, in the order of the claims; others are told with the reason.

    comparisons: all that there are; those of `answers` are among them.
    """
    kept = [_Pairs(each) for each in answers]
    everything = comparisons or [each.comparison for each in answers]
    found: list[Judged] = []
    for claim in claims:
        own = [one for pairs in kept for one in _of_answer(claim, pairs)]
        found += own or [
            Judged(
                claim=claim,
                comparison=None,
                arm=claim.arm,
                comparator=claim.comparator,
                measured="",
                verdict=Verdict(word="no verdict", reasons=(_not_compared(claim, everything),)),
            )
        ]
    return found


def _not_compared(claim: records.Claim, comparisons: Sequence[Comparison]) -> str:
    """Why no comparison says anything of a claim."""
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
    """An answer, and what was made of its pairs of arms: each once, however many claims ask for it."""

    given: Answer
    _answers: dict[str, Answer | None] = field(default_factory=dict)
    _ledgers: dict[tuple[str, str, str], Ledger] = field(default_factory=dict)

    def against(self, comparator: Arm) -> Answer | None:
        if comparator.label not in self._answers:
            self._answers[comparator.label] = held_against(self.given, comparator)
        return self._answers[comparator.label]

    def ledger(self, comparator: Arm, arm: Arm, headline: str) -> Ledger:
        """`headline` matters only where it allows differences."""
        asked = headline if headline in BY_DESIGN else ""
        key = (comparator.label, arm.label, asked)
        if key not in self._ledgers:
            self._ledgers[key] = fairness(comparator.runs, arm.runs, headline=asked)
        return self._ledgers[key]


def _of_answer(claim: records.Claim, pairs: _Pairs) -> list[Judged]:
    given = pairs.given
    comparators = [arm for arm in given.comparison.arms if _is(arm, claim.comparator)]
    if claim.comparator == "ddp" and given.baseline.runs[0].strategy == "ddp":
        comparators = [given.baseline]
    elif claim.headline in TIME and comparators:
        # Beside the one that is named, the better ddp: the baseline, or what beat it.
        comparators += [arm for arm in (given.baseline, *given.faster) if arm not in comparators]
    found: list[Judged] = []
    for comparator in comparators:
        rebased = pairs.against(comparator)
        if rebased is None:
            continue
        for line in rebased.lines:
            if _is(line.arm, claim.arm) and line.arm is not comparator:
                ledger = pairs.ledger(comparator, line.arm, claim.headline)
                found.append(_judged(claim, rebased, line, ledger))
    return found


def _judged(claim: records.Claim, given: Answer, line: Line, ledger: Ledger) -> Judged:
    conditions = _conditions(claim, given, line, ledger)
    how = measured.no_loss if claim.direction == "not_worse" else measured.HEADLINES[claim.headline]
    found = how(_scored(claim), given, line, conditions)
    return Judged(
        claim=claim,
        comparison=given.comparison,
        arm=line.arm.label,
        comparator=given.against.label,
        measured=found.said,
        verdict=found.verdict,
        ledger=ledger,
        ratio=found.ratio,
        conditions=conditions,
    )


def _scored(claim: records.Claim) -> Hypothesis:
    """The claim as the rules take it. Quality by itself goes by the rules of equal work."""
    headline = "fixed_work" if claim.headline == "quality" else claim.headline
    return Hypothesis(
        value=claim.gain, headline=headline, quantifier=claim.quantifier, quality_margin=claim.quality_margin
    )


def _conditions(claim: records.Claim, given: Answer, line: Line, ledger: Ledger) -> Conditions:
    noise = given.target_floor if claim.headline == "time_to_target" else given.fixed_floor
    counts = [evaluations(arm) for arm in (given.against, line.arm)]
    differs, not_stated, other = _stated(claim, line.arm.runs[0])
    most = measured.most(claim.headline, given, noise.floor)
    unequal = [
        f"not equal: {row.quantity} ({row.baseline}; {row.arm})"
        if row.equal is False
        else f"{row.quantity}: {row.wrong}"
        for row in ledger.forbidding
    ]
    return Conditions(
        runs=min(len(given.against.counted), len(line.arm.counted)),
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
            *given.forbidden,
            *(given.wrong if given.against is given.baseline and not _named(claim, given.against) else ()),
            *([most.impossible] if most.impossible else []),
            *(why for arm in (given.against, line.arm) if (why := _no_native(claim, arm))),
            *given.reasons(given.against, line.arm),
            *unequal,
        ),
    )


def _stated(claim: records.Claim, run: Run) -> tuple[tuple[str, ...], tuple[str, ...], tuple[str, ...]]:
    """(what differs of the machine, what the source does not state, what differs of the workload).

    Model, data and metric do not make a claim untestable: it may be about more than its own workload, and the
    verdict says which one it is on. Device and network are words of the paper, which no record can be held
    against.
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


def _named(claim: records.Claim, arm: Arm) -> bool:
    """Whether the claim is about this comparator, and not about the better ddp, whichever that is."""
    return claim.comparator != "ddp" and _is(arm, claim.comparator)


def _no_native(claim: records.Claim, arm: Arm) -> str:
    """Why an arm that a claim calls native is not ddp with one process a node and all its cores."""
    if claim.comparator != NATIVE or not _is(arm, NATIVE):
        return ""
    run = arm.runs[0]
    asked = (run.config.get("cluster") or {}).get("ranks_per_node")
    ranks = sorted(set(asked if isinstance(asked, list) else [asked or 1]))
    if run.strategy != "ddp" or ranks != [1]:
        processes = " or ".join(map(str, ranks))
        return f"{arm.label} is not native: {run.strategy}, {processes} processes a node; it is ddp with one"
    idle = next((said for run in arm.counted if (said := recorded.idle_cores(run))), "")
    return f"{arm.label} is not native: {idle}; one process a node is to use all its cores" if idle else ""
