"""Claims of "up to" over all sizes of a study: one of them is said to reach it, so all must be asked.

Source: the measuring rules (time to accuracy), "verdict on a claim", `up_to`; the rule is in
`runner/scoring/grid.py`, what a declared and a spanning grid is stands here and in docs/claims.md.
"""

from collections import defaultdict
from collections.abc import Iterable, Sequence

from ..scoring.claims import Claim
from ..scoring.grid import Configuration, configuration, grid_verdict
from . import words
from .arms import Comparison, natural
from .judged import Judged
from .load import Run

LITTLE = 0.10  # of a step: the share of exposed communication from which a grid has to start
_UNJUDGED = ("no verdict", "not testable here")


def over_sizes(claim: Claim, judged: Iterable[Judged], runs: Sequence[Run]) -> list[Judged]:
    """One verdict for each arm, comparator and workload that `judged` has in several sizes of one study.

    `judged`: all of one claim, `claim` as the rules take it. `runs`: all that lie there, of every study.
    """
    if claim.value is None or claim.quantifier != "up_to":
        return []
    groups: dict[tuple[str, ...], list[tuple[Comparison, Judged]]] = defaultdict(list)
    for one in judged:
        c = one.comparison
        if c is not None and c.size and one.conditions is not None:
            place = (one.arm, one.comparator, c.study, c.model, c.dataset, c.world, str(c.tuned))
            groups[place].append((c, one))
    return [
        _over(claim, [one for _, one in members], runs)
        for members in groups.values()
        if len({c.size for c, _ in members}) == len(members) > 1
    ]


def _over(claim: Claim, members: Sequence[Judged], runs: Sequence[Run]) -> Judged:
    ordered = sorted(members, key=lambda one: natural(_size(one)))
    grid = [_configuration(one, len(ordered)) for one in ordered]
    found = grid_verdict(claim, grid, declared=declared(ordered, runs), spans=spans(claim, ordered))
    measured = max(ordered, key=lambda one: one.ratio.low if one.ratio else 0.0)
    return Judged(
        claim=measured.claim,
        comparison=measured.comparison,
        arm=measured.arm,
        comparator=measured.comparator,
        measured=f"{words.interval(measured.ratio)} at most, in {_size(measured)}",
        verdict=found,
        over=tuple(_size(one) for one in ordered),
    )


def _configuration(one: Judged, configurations: int) -> Configuration:
    assert one.conditions is not None, "only what was compared is in a grid"
    return configuration(_size(one), one.ratio, one.conditions, configurations, kept=one.kept)


def declared(members: Sequence[Judged], runs: Iterable[Run]) -> bool:
    """Whether the plan declared every run of both arms in every size before the study's first run began.

    Without a plan, or where no run tells when it began, it did not.
    """
    of_study = {one.comparison.study for one in members if one.comparison}
    begun = [run.started_unix for run in runs if run.study in of_study]
    known = [start for start in begun if start is not None]
    if not known:
        return False
    first = min(known)
    asked = [
        run
        for one in members
        for arm in (one.comparison.arms if one.comparison else [])
        if arm.label in (one.arm, one.comparator)
        for run in arm.counted
    ]
    return all(run.declared_unix is not None and run.declared_unix < first for run in asked)


def spans(claim: Claim, members: Sequence[Judged]) -> bool:
    """Whether communication goes from little to enough for the claim, and the best chance was judged.

    From the baseline's bound of each size, 1 / (1 - share of exposed communication): every one is known; the
    smallest share is at most 10 % of a step; the largest bound leaves room for the claimed factor; and where
    it is largest, the most favourable size, there is a verdict.
    """
    bounds = [one.conditions.bound if one.conditions else None for one in members]
    known = [bound for bound in bounds if bound is not None]
    if claim.value is None or len(known) < len(bounds):
        return False
    best = members[bounds.index(max(known))]
    little = 1 - 1 / min(known) <= LITTLE + 1e-12
    return little and max(known) >= claim.value and best.verdict.word not in _UNJUDGED


def _size(one: Judged) -> str:
    return one.comparison.size if one.comparison else ""
