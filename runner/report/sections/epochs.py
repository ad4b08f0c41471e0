"""Section: spread of the ranks and staleness of what they take in, by epoch.

Both as the strategy of rank 0 recorded them. Strategies whose ranks are always equal have neither.
"""

import statistics
from typing import Any

from ...records.json_lines import Row
from ..data.arms import Comparison, walk, who
from ..data.load import Run, number
from ..section import Rows, Section, with_rows

FIELDS = ("attempt", "epoch", "step", "samples", "learning_rate")


def spread(row: Row) -> float | None:
    """‖θ - mean‖ / ‖mean‖ of an epoch's row, before its last average; of rounds, the last that is listed."""
    recorded = _of_strategy(row)
    value = recorded.get("spread")
    if value is None:
        rounds = [item.get("spread") for item in _list(recorded.get("detail")) if isinstance(item, dict)]
        before = [spreads[0] for spreads in rounds if isinstance(spreads, list) and spreads]
        value = before[-1] if before else None
    return number(value)


def staleness(row: Row) -> tuple[float, float] | None:
    """Mean and largest number of steps that a rank took from sending its model to using the mean.

    row: an epoch or the summary of a run. None where the strategy recorded nothing of it.
    """
    recorded = _of_strategy(row)
    stale = recorded.get("staleness_steps")
    if isinstance(stale, dict):
        mean, largest = number(stale.get("mean")), number(stale.get("max"))
        if mean is not None and largest is not None:
            return mean, largest
    # The batches between start and end of every sum of an epoch.
    batches = [b for value in _list(recorded.get("waited_batches")) if (b := number(value)) is not None]
    return (statistics.fmean(batches), max(batches)) if batches else None


def _of_strategy(row: Row) -> Row:
    """What the strategy recorded; a plug-in's may be anything."""
    recorded = row.get("strategy")
    return recorded if isinstance(recorded, dict) else {}


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


class EpochSection(Section):
    """Table `epochs`, for comparisons with a run whose ranks were apart or took in something old."""

    def tables(self) -> dict[str, Rows]:
        """`epochs`: a row per surviving epoch of every run."""
        comparisons = [comparison for comparison in self.results.configured if _applies(comparison)]
        return with_rows(
            epochs=[
                who(comparison, arm, run)
                | {name: row.get(name) for name in FIELDS}
                | {"phase": _of_strategy(row).get("phase"), "spread": spread(row)}
                | dict(
                    zip(
                        ("staleness_steps_mean", "staleness_steps_max"),
                        staleness(row) or (None, None),
                        strict=True,
                    )
                )
                for comparison, arm, run in walk(comparisons)
                for row in run.epochs
            ]
        )


def _applies(comparison: Comparison) -> bool:
    return any(_is_apart(run) for run in comparison.runs)


def _is_apart(run: Run) -> bool:
    return any(spread(row) or staleness(row) for row in run.epochs) or staleness(run.summary) is not None
