"""Who reached the target, how surely and when, under each reading of "reached": `reached.csv` and words.

Source: the measuring rules (time to accuracy), "statistics", runs that miss the target.
"""

from collections.abc import Iterable
from typing import Any

from ..scoring import reached
from ..scoring.reached import Reached
from . import words
from .arms import Arm, Comparison
from .target import budget_s, horizon_s, readings, way

READINGS = {
    "scored": "scored: the middle of the stretch in which the target was first met",
    "stamp": "stamp: the first evaluation that met it",
    "confirmed": "confirmed: the first whose next one met it too",
    "for_good": "for good: the first from which on all met it",
}
RATE_ONLY = "rate only"


def has_target(comparison: Comparison) -> bool:
    """Whether there is a target, and a run that counts."""
    return bool(comparison.targets) and any(arm.counted for arm in comparison.arms)


def arm_way(comparison: Comparison, arm: Arm) -> Reached | None:
    """The arm's way to the target; None without a run that counts or without a target."""
    if not arm.counted or all(run.target is None for run in arm.runs):
        return None
    return way(arm.counted, horizon_s(comparison))


def reached_words(found: Reached) -> str:
    """`4 of 5 [0.38, 0.96]`: with Wilson's interval of the share."""
    ends = reached.wilson(found.reached, found.runs)
    return f"{found.reached} of {found.runs} [{ends.low:.2f}, {ends.high:.2f}]"


def median_words(found: Reached) -> str:
    """The median time (Kaplan-Meier), or that fewer than half reached the target."""
    return RATE_ONLY if found.rate_only else words.seconds(reached.median_s(found))


def expected_words(found: Reached) -> str:
    """The time of all runs for each that reached the target, or that fewer than half did."""
    return RATE_ONLY if found.rate_only else words.seconds(reached.expected_running_s(found))


def reading_words(comparison: Comparison, arm: Arm) -> dict[str, str]:
    """Of each reading the median time and, where not all runs reached it so, how many did; {} without any."""
    if arm_way(comparison, arm) is None:
        return {}
    return {
        name: median_words(found) + ("" if found.all_reached else f" ({found.reached} of {found.runs})")
        for name, found in readings(arm, horizon_s(comparison)).items()
    }


def reached_rows(comparisons: Iterable[Comparison]) -> list[dict[str, Any]]:
    """One row per arm of every comparison with a target."""
    return [
        _row(comparison, arm)
        for comparison in comparisons
        if has_target(comparison)
        for arm in comparison.arms
        if arm.counted
    ]


def _row(comparison: Comparison, arm: Arm) -> dict[str, Any]:
    found = readings(arm, horizon_s(comparison))
    scored = found["scored"]
    ends = reached.wilson(scored.reached, scored.runs)
    row: dict[str, Any] = {
        **comparison.place,
        "arm": arm.label,
        "target": comparison.targets[0] if len(comparison.targets) == 1 else None,
        "budget_s": budget_s(comparison),
        "runs": scored.runs,
        "reached": scored.reached,
        "reached_low": ends.low,
        "reached_high": ends.high,
        "rate_only": scored.rate_only,
        # Fewer than half: a rate, and no time at all.
        "expected_running_s": None if scored.rate_only else reached.expected_running_s(scored),
    }
    for name, one in found.items():
        row |= {f"{name}_reached": one.reached, f"{name}_median_s": reached.median_s(one)}
    return row
