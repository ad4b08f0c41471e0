"""Check "fair": whether the arms differ from the baseline in more than their strategies."""

from ..claims.fairness import ALONE, by_design, forbidding, in_words, spread
from ..claims.speedups import Speedups
from .check import Check


def check(study: Speedups) -> Check:
    """Red where an arm, claimed or not, differs from the baseline in more than what is its strategy's own.

    Amber where the baseline's own runs differ in machine or code. Second baselines are arms too.
    """
    forbids: dict[str, str] = {}
    found: dict[str, str] = {}  # by label, in full
    for arm in study.comparison.arms:
        table = study.ledgers.get(arm.label, [])
        if count := len(forbidding(table)):
            more = forbidding(by_design(table, "efficiency"))
            forbids[arm.label] = in_words(table, most=0) if more else ALONE
            found[arm.label] = f"{arm.label} differs from {study.baseline.label} in {in_words(table, count)}"
    mixed = [f"the runs of {study.baseline.label} differ: {what}" for what in spread(study.baseline.runs)]
    sentence = f"no arm differs from {study.baseline.label} in more than its strategy"
    if found:
        worst = max(found, key=lambda label: len(forbidding(study.ledgers[label])))
        arms = f"{len(found)} of {len(study.comparison.arms)} arms may not be compared"
        sentence = f"{arms}; {worst}: {in_words(study.ledgers[worst], most=1)}"
    return Check(
        name="fair",
        level="red" if forbids else "amber" if mixed else "green",
        sentence=mixed[0] if mixed and not found else sentence,
        details=(*found.values(), *mixed),
        forbids=forbids,
    )
