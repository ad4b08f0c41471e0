"""Who reached the target, how surely and when: `reached.csv` and words.

Source: docs/method.md, "Runs that miss the target".
"""

from collections.abc import Iterable
from typing import Any

from . import words
from .data.arms import Arm, Comparison
from .statistics import reached
from .statistics.reached import Reached
from .target import budget_s, horizon_s, way

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
    found = way(arm.counted, horizon_s(comparison))
    ends = reached.wilson(found.reached, found.runs)
    return {
        **comparison.place,
        "arm": arm.label,
        "target": comparison.targets[0] if len(comparison.targets) == 1 else None,
        "budget_s": budget_s(comparison),
        "runs": found.runs,
        "reached": found.reached,
        "reached_low": ends.low,
        "reached_high": ends.high,
        "rate_only": found.rate_only,
        "median_s": reached.median_s(found),
        # Fewer than half: a rate, and no time at all.
        "expected_running_s": None if found.rate_only else reached.expected_running_s(found),
    }
