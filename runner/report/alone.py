"""What one core does alone, x₁ of an efficiency: the runs it is taken from, or why there are none.

Source: HSGD, the four-arm efficiency matrix: same nodes, cores, model and precision, batch B_global / cores.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from .claims import recorded
from .claims.fairness import fairness
from .claims.speedups import rated
from .data.arms import Arm, Comparison
from .data.load import Run

ROLE = "one_core"
FEWEST = 2  # runs; there is no mean of one


@dataclass(frozen=True, kw_only=True)
class Alone:
    """`arm`: of one core; None where there is none that can be it, `why` says so."""

    arm: Arm | None = None
    why: str = ""


def alone_of(comparison: Comparison, baseline: Arm, cores: int) -> Alone:
    """The one arm of one core that a baseline on so many cores is held against."""
    found = [arm for arm in comparison.arms if arm.runs[0].role == ROLE]
    if not found:
        return Alone(why="no run of one core (study.role=one_core)")
    if len(found) > 1:
        return Alone(why=f"several arms of one core ({'; '.join(arm.label for arm in found)}): keep one")
    (arm,) = found
    if len(rated(arm)) < FEWEST:
        return Alone(why=f"{arm.label} has fewer than {FEWEST} complete runs")
    table = fairness(baseline.runs, arm.runs, headline="efficiency")
    differs = [row.wrong or f"{row.quantity} ({row.baseline}; {row.arm})" for row in table.forbidding]
    wrong = [*differs, *_elsewhere(baseline, arm), *_batch(baseline, arm, cores)]
    if wrong:
        return Alone(why=f"{arm.label} is no core of {baseline.label}'s: not equal: {'; '.join(wrong)}")
    return Alone(why=stood) if (stood := recorded.busy_reason(arm)) else Alone(arm=arm)


def _elsewhere(baseline: Arm, arm: Arm) -> list[str]:
    """Hosts of the core that are none of the baseline's."""
    theirs = {host for run in rated(baseline) for host in recorded.hosts(run)}
    others = sorted({host for run in rated(arm) for host in recorded.hosts(run)} - theirs)
    return [f"nodes ({', '.join(sorted(theirs))}; {', '.join(others)})"] if others and theirs else []


def _batch(baseline: Arm, arm: Arm, cores: int) -> list[str]:
    """The core's batch where it is not its part of the baseline's, rounded either way."""
    whole, own = (_batches(runs) for runs in (rated(baseline), rated(arm)))
    if len(whole) != 1 or len(own) != 1:
        return []  # unequal ones are arms of their own; without a configuration nothing is known
    (of_all,), (part,) = whole, own
    if part in (of_all // cores, -(-of_all // cores)):
        return []
    return [f"batch of a core ({of_all} / {cores}; {part})"]


def _batches(runs: Sequence[Run]) -> set[int]:
    sizes = [(run.config.get("train") or {}).get("global_batch_size") for run in runs]
    return {size for size in sizes if isinstance(size, int)}
