"""When a run met its target: from its evaluation rows, the crossing time and samples that are scored."""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from .json_lines import Row


def best(rows: Iterable[Row], field: str = "accuracy") -> Row | None:
    """The first row with the highest finite `field`; None if no row has one."""
    finite = [row for row in rows if is_number(row.get(field))]
    return max(finite, key=lambda row: row[field], default=None)


def is_number(value: Any) -> bool:
    """Whether a value of a record is a finite number."""
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


@dataclass(frozen=True, kw_only=True)
class Crossing:
    """The target was crossed in (after, stamp], in seconds of T_train, and samples.

    `scored_s` and `scored_samples` are the midpoints of the logarithms, sqrt(after * stamp). If the first
    evaluation is the crossing there is nothing to halve: `at_first` is True and the stamp itself is scored.
    `wall_s` is T_wall at the end of the evaluation (None if it was not recorded). Source: docs/method.md,
    "Crossing the target".
    """

    index: int
    after_s: float
    stamp_s: float
    scored_s: float
    wall_s: float | None
    stamp_samples: float
    scored_samples: float
    at_first: bool


def meets(row: Row, target: float, metric: str = "accuracy") -> bool:
    """Whether an evaluation row meets `target`; NaN and missing never do.

    A loss must be at most the target, any other metric (a share, 0 to 1) at least. Where the row counts hits,
    an accuracy is a number right, ceil(target * count): rounding cannot decide.
    """
    value = row.get(metric)
    if value is None or not is_number(value):
        return False
    if metric == "loss":
        return value <= target
    correct, count = row.get("correct"), row.get("count")
    if metric == "accuracy" and isinstance(correct, int) and isinstance(count, int) and count > 0:
        return correct >= math.ceil(round(target * count, 6))
    return value >= target


def crossing(rows: Iterable[Row], target: float, *, metric: str = "accuracy") -> Crossing | None:
    """Where the metric crossed `target`, from rows of kind "evaluation" in order (others are skipped).

    It is the first evaluation at which two of three meet the target: the one before, this one and the next
    one. So the running median of three evaluations crosses there, and one lucky evaluation decides nothing.
    Before the first evaluation nothing meets the target; after the last one the last one counts again, so
    that a run that stopped at its target has a crossing. Source: docs/method.md, "Crossing the target".
    """
    evaluations = [row for row in rows if row.get("kind", "evaluation") == "evaluation"]
    met = [meets(row, target, metric) for row in evaluations]
    padded = [False, *met, *met[-1:]]
    index = next((place for place in range(len(met)) if sum(padded[place : place + 3]) >= 2), None)
    if index is None:
        return None
    row = evaluations[index]
    before = evaluations[index - 1] if index else {"train_s": 0.0, "samples": 0}
    # A stamp holds the making of its own model alone, so that of the evaluation before may be the later one.
    before = {name: min(before[name], row[name]) for name in ("train_s", "samples")}
    at_first = before["train_s"] <= 0
    return Crossing(
        index=index,
        after_s=before["train_s"],
        stamp_s=row["train_s"],
        scored_s=row["train_s"] if at_first else math.sqrt(before["train_s"] * row["train_s"]),
        wall_s=row.get("wall_s"),
        stamp_samples=row["samples"],
        scored_samples=row["samples"] if at_first else math.sqrt(before["samples"] * row["samples"]),
        at_first=at_first,
    )
