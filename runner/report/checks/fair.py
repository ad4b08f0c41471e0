"""Check "fair": whether the arms differ from the baseline in more than their strategies."""

from ..claims.fairness import fairness, forbidding
from ..claims.speedups import Speedups
from .check import Check


def check(study: Speedups) -> Check:
    """Red where an arm differs from the baseline in something that is not its strategy's own."""
    unequal = {
        line.arm.label: len(forbidding(fairness(study.baseline.runs, line.arm.runs))) for line in study.lines
    }
    forbids = {label: f"{count} unequal things" for label, count in unequal.items() if count}
    return Check(
        name="fair",
        level="red" if forbids else "green",
        sentence=f"{len(forbids)} of {len(unequal)} arms differ in more than the strategy",
        forbids=forbids,
    )
