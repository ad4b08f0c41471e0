"""Verdicts as people read them, and as the rows of `claims.csv` and `fairness.csv`."""

from collections.abc import Iterable, Sequence
from typing import Any

from ..data.arms import EQUALLY
from .claims_table import gain_words
from .judged import Judged


def remarks(one: Judged) -> list[str]:
    """What stands beside the word: remarks, reasons, and how many runs would decide."""
    found = [*one.verdict.remarks, *one.verdict.reasons]
    if one.verdict.smallest_n is not None:
        found.append(f"{one.verdict.smallest_n} runs an arm would decide, if spread and point stay")
    elif one.verdict.word == "inconclusive":
        found.append("no number of runs up to 100 would decide, if spread and point stay")
    return found


def workload(one: Judged) -> str:
    """Where it was measured: study, model, data, world and size; and whether with equally tuned arms."""
    comparison = one.comparison
    if comparison is None:
        return ""
    parts = [
        comparison.study,
        f"{comparison.model} on {comparison.dataset}",
        comparison.world,
        comparison.size,
        EQUALLY if comparison.tuned else "",
    ]
    return ", ".join(part for part in parts if part)


def claim_rows(judged: Iterable[Judged]) -> list[dict[str, Any]]:
    """One row per claim, arm and configuration."""
    return [
        {
            "claim": one.claim.id,
            "says": one.claim.says,
            "claimed": gain_words(one.claim),
            "headline": one.claim.headline,
            "certainty": one.claim.certainty,
            "where": workload(one),
            "arm": one.arm,
            "comparator": one.comparator,
            "measured": one.measured,
            "verdict": one.verdict.word,
            "remarks": "; ".join(remarks(one)),
        }
        for one in judged
    ]


def fairness_rows(judged: Sequence[Judged]) -> list[dict[str, Any]]:
    """Every line of every ledger, once per pair of arms."""
    rows: list[dict[str, Any]] = []
    seen: set[tuple[str, str, str]] = set()
    for one in judged:
        pair = (workload(one), one.comparator, one.arm)
        if one.ledger is None or pair in seen:
            continue
        seen.add(pair)
        rows += [
            {
                "where": pair[0],
                "baseline": pair[1],
                "arm": pair[2],
                "quantity": row.quantity,
                "of_baseline": row.baseline,
                "of_arm": row.arm,
                "equal": "not recorded" if row.equal is None else row.equal,
                "own_of_the_strategy": row.own,
                "forbids_a_verdict": row.forbids,
                "why": row.wrong,
            }
            for row in one.ledger.rows
        ]
    return rows
