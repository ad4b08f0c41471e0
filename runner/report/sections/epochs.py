"""Section: spread of the ranks and staleness of what they take in, by epoch.

Both as the strategy of rank 0 recorded them. Strategies whose ranks are always equal have neither.
"""

import statistics
from typing import Any

from ...records.rows import EpochRow
from ..data.arms import Comparison, walk, who
from ..data.load import number
from ..section import Rows, Section, with_rows


def spread(recorded: Any) -> float | None:
    """‖θ - mean‖ / ‖mean‖ before the last average of an epoch; of rounds, the last that is listed.

    recorded: what the strategy recorded of the epoch; a plug-in's may be anything.
    """
    strategy = _mapping(recorded)
    value = strategy.get("spread")
    if value is None:
        rounds = [_mapping(item).get("spread") for item in _list(strategy.get("detail"))]
        before = [spreads[0] for spreads in rounds if isinstance(spreads, list) and spreads]
        value = before[-1] if before else None
    return number(value)


def staleness(recorded: Any) -> tuple[float, float] | None:
    """Mean and largest number of steps that a rank took from sending its model to using the mean.

    recorded: what the strategy recorded of an epoch or a run. None where it recorded nothing of it.
    """
    strategy = _mapping(recorded)
    stale = _mapping(strategy.get("staleness_steps"))
    mean, largest = number(stale.get("mean")), number(stale.get("max"))
    if mean is not None and largest is not None:
        return mean, largest
    # The batches between start and end of every sum of an epoch.
    batches = [b for value in _list(strategy.get("waited_batches")) if (b := number(value)) is not None]
    return (statistics.fmean(batches), max(batches)) if batches else None


def _mapping(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


class EpochSection(Section):
    """Table `epochs`, for comparisons with a run whose ranks were apart or took in something old."""

    def tables(self) -> dict[str, Rows]:
        """`epochs`: a row per surviving epoch of every run."""
        return with_rows(
            epochs=[
                who(comparison, arm, run) | _epoch_row(row)
                for comparison, arm, run in walk(filter(_applies, self.results.configured))
                for row in run.epochs
            ]
        )


def _applies(comparison: Comparison) -> bool:
    """Whether the ranks of some run were apart, or took in something old."""
    epochs = [row.strategy for run in comparison.runs for row in run.epochs]
    summaries = [run.summary.get("strategy") for run in comparison.runs]
    return any(spread(recorded) or staleness(recorded) for recorded in epochs) or any(
        map(staleness, summaries)
    )


def _epoch_row(row: EpochRow) -> dict[str, Any]:
    mean, largest = staleness(row.strategy) or (None, None)
    return {
        **{name: getattr(row, name) for name in ("attempt", "epoch", "step", "samples", "learning_rate")},
        "phase": _mapping(row.strategy).get("phase"),
        "spread": spread(row.strategy),
        "staleness_steps_mean": mean,
        "staleness_steps_max": largest,
    }
