"""What strategies say about an epoch: how far the ranks are apart, and how old what they take in is.

Both as rank 0 recorded them. Strategies whose ranks are always equal have neither.
"""

import math
import statistics
from collections.abc import Iterable
from typing import Any

from .data.arms import Comparison
from .data.load import Run
from .tables import walk, who

Row = dict[str, Any]


def spread(row: Row) -> float | None:
    """‖θ - mean‖ / ‖mean‖ of an epoch's row, before its last average; of rounds, the last that is listed."""
    told = _told(row)
    value = told.get("spread")
    if value is None:
        rounds = [one.get("spread") for one in _list(told.get("detail")) if isinstance(one, dict)]
        before = [found[0] for found in rounds if isinstance(found, list) and found]
        value = before[-1] if before else None
    return _number(value)


def staleness(run: Run) -> tuple[float, float] | None:
    """Mean and largest number of steps that a rank took from sending its model to using the mean."""
    whole = _mean_and_largest(_told(run.summary))
    if whole:
        return whole
    waited = [steps for row in run.epochs for steps in _waited(_told(row))]
    return (statistics.fmean(waited), max(waited)) if waited else None


def epochs_rows(comparisons: Iterable[Comparison]) -> list[Row]:
    """One row per surviving epoch of every run in `comparisons`."""
    return [
        who(comparison, arm, run)
        | {name: row.get(name) for name in ("attempt", "epoch", "step", "samples", "learning_rate")}
        | {"phase": _told(row).get("phase"), "spread": spread(row)}
        | dict(zip(("staleness_steps_mean", "staleness_steps_max"), _of_epoch(row), strict=True))
        for comparison, arm, run in walk(comparisons)
        for row in run.epochs
    ]


def _of_epoch(row: Row) -> tuple[float | None, float | None]:
    """Mean and largest staleness of one epoch."""
    waited = _waited(_told(row))
    nothing = (None, None)
    return _mean_and_largest(_told(row)) or ((statistics.fmean(waited), max(waited)) if waited else nothing)


def _mean_and_largest(told: Row) -> tuple[float, float] | None:
    """As the strategy itself summed it up."""
    stale = told.get("staleness_steps")
    if not isinstance(stale, dict):
        return None
    mean, largest = _number(stale.get("mean")), _number(stale.get("max"))
    return None if mean is None or largest is None else (mean, largest)


def _waited(told: Row) -> list[float]:
    """The batches between start and end of every sum of an epoch."""
    return [steps for value in _list(told.get("waited_batches")) if (steps := _number(value)) is not None]


def _told(row: Row) -> Row:
    """What the strategy said: a plug-in's may be anything."""
    told = row.get("strategy")
    return told if isinstance(told, dict) else {}


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _number(value: Any) -> float | None:
    whole = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    return value if whole else None


def has_spread(comparison: Comparison) -> bool:
    """Whether some epoch ended with ranks apart."""
    return any(spread(row) for run in comparison.runs for row in run.epochs)


def has_staleness(comparison: Comparison) -> bool:
    """Whether some run took in something old."""
    return any(staleness(run) for run in comparison.runs)
