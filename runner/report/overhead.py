"""What the clock costs a study: from runs whose clock was off in every other block (`study.role=overhead`).

Source: the measuring rules (time to accuracy), "validity, fairness ledger, guard".
"""

from dataclasses import dataclass

from ..scoring.validity import FEWEST_PAIRS, OVERHEAD, Overhead, clock_overhead
from .arms import Comparison

ROLE = "overhead"


@dataclass(frozen=True, kw_only=True)
class ClockCost:
    """`pairs`: of blocks with and without the clock; `cost`: None where they are too few."""

    pairs: int
    cost: Overhead | None

    @property
    def forbids(self) -> str:
        """Why the study gets no verdict; "" where it may."""
        return "" if self.cost is None or self.cost.valid else self.sentence

    @property
    def sentence(self) -> str:
        """What was found."""
        if self.cost is None:
            return f"What the clock costs is not known: {self.pairs} pairs of blocks of {FEWEST_PAIRS}."
        mean, limit = self.cost.mean, self.cost.limit
        told = f"steps take {mean:.4f} times as long with the clock (at most {limit:.4f}, {self.pairs} pairs)"
        if self.cost.valid:
            return f"The clock is light: {told}."
        if self.cost.heavy:
            return f"The clock is too heavy: {told}; more than {OVERHEAD:g} is no measurement."
        return (
            f"The clock is not shown to be light: {told}, where {OVERHEAD:g} is allowed; "
            "more steps, longer ones or a quieter machine would show more."
        )


def clock_cost(comparison: Comparison) -> ClockCost | None:
    """From all such runs of a comparison together; None where there is none."""
    arms = [arm for arm in comparison.arms if arm.runs[0].role == ROLE]
    if not arms:
        return None
    pairs = [run.summary.get("clock_pairs") or {} for arm in arms for run in arm.counted]
    ratios = [float(ratio) for pair in pairs for ratio in pair.get("log_ratios", [])]
    steps = min((int(pair["steps"]) for pair in pairs if "steps" in pair), default=0)
    enough = len(ratios) >= FEWEST_PAIRS
    return ClockCost(pairs=len(ratios), cost=clock_overhead(ratios, steps=steps) if enough else None)
