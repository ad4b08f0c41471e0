"""What the clock costs a study: from runs whose clock was off in every other block (`study.role=overhead`).

Arms are judged apart, and the worst decides: a clock that is light on one may be heavy on another.
Source: the measuring rules (time to accuracy), "validity, fairness ledger, guard".
"""

from collections.abc import Mapping
from dataclasses import dataclass

from ...strategies.errors import ConfigError
from ..scoring.validity import OVERHEAD, Overhead, clock_overhead
from .arms import Arm, Comparison
from .numbers import number

ROLE = "overhead"


@dataclass(frozen=True, kw_only=True)
class ClockCost:
    """Of one arm. `pairs`: of blocks with and without the clock; `cost`: None if not known, and `why`."""

    arm: str
    pairs: int
    cost: Overhead | None
    why: str = ""

    @property
    def forbids(self) -> str:
        """Why the study gets no verdict; "" where it may."""
        return "" if self.cost is None or self.cost.valid else self.sentence

    @property
    def sentence(self) -> str:
        """What was found."""
        if self.cost is None:
            return f"What the clock costs is not known: {self.why} ({self.arm})."
        mean, limit = self.cost.mean, self.cost.limit
        told = (
            f"steps take {mean:.4f} times as long with the clock (at most {limit:.4f}, {self.pairs} pairs of "
            f"{self.arm})"
        )
        if self.cost.valid:
            return f"The clock is light: {told}."
        if self.cost.heavy:
            return f"The clock is too heavy: {told}; more than {OVERHEAD:g} is no measurement."
        return (
            f"The clock is not shown to be light: {told}, where {OVERHEAD:g} is allowed; "
            "more steps, longer ones or a quieter machine would show more."
        )


def clock_cost(comparison: Comparison) -> ClockCost | None:
    """The largest of all arms with that role; one that is not known only where all others are light.

    None where there is no such arm.
    """
    found = [_of(arm) for arm in comparison.arms if arm.runs[0].role == ROLE]
    known = [one for one in found if one.cost is not None]
    forbidding = [one for one in known if one.forbids]
    unknown = [one for one in found if one.cost is None]
    worst = max(known, key=lambda one: one.cost.limit if one.cost else 0.0, default=None)
    return worst if forbidding else next(iter(unknown), worst)


def _of(arm: Arm) -> ClockCost:
    """From all runs of an arm together."""
    pairs = [pair for run in arm.counted if isinstance(pair := run.summary.get("clock_pairs"), Mapping)]
    found = [value for pair in pairs if isinstance(value := pair.get("log_ratios"), list)]
    ratios = [ratio for values in found for value in values if (ratio := number(value)) is not None]
    steps = [value for pair in pairs if (value := number(pair.get("steps"))) is not None]
    if len(ratios) < sum(map(len, found)) or len(found) < len(pairs) or len(steps) < len(pairs):
        return ClockCost(arm=arm.label, pairs=len(ratios), cost=None, why="not all of its pairs are numbers")
    try:
        cost = clock_overhead(ratios, steps=int(min(steps, default=0)))
    except ConfigError as error:
        return ClockCost(arm=arm.label, pairs=len(ratios), cost=None, why=str(error))
    return ClockCost(arm=arm.label, pairs=len(ratios), cost=cost)
