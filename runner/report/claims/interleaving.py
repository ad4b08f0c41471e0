"""In which order the runs of two arms were made: a machine that warms up or gets busy favours one of them."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ..data.load import Run


@dataclass(frozen=True)
class Order:
    """The places of each side's runs in time (`1, 4`), "" where not known; `wrong`: why that is unfair."""

    baseline: str
    arm: str
    wrong: str = ""


def order_of_execution(baseline: Sequence[Run], arm: Sequence[Run]) -> Order:
    """How two arms were interleaved, from the starts and ends of their attempts.

    Unfair is one arm whose last run ended before the other's first began, if each has two runs or more: of
    one run each, one has to be first.
    """
    sides = [[_span(run) for run in runs] for runs in (baseline, arm)]
    if not all(sides) or any(span is None for side in sides for span in side):
        return Order("", "")
    spans = [[span for span in side if span is not None] for side in sides]
    times = sorted(span for side in spans for span in side)
    places = [", ".join(str(1 + times.index(span)) for span in sorted(side)) for side in spans]
    for first, second, word in ((0, 1, "the baseline's"), (1, 0, "the arm's")):
        ended, begun = max(end for _, end in spans[first]), min(start for start, _ in spans[second])
        if min(map(len, spans)) > 1 and ended <= begun:
            return Order(*places, wrong=f"all of {word} runs came first: interleave them (one sweep does)")
    return Order(*places)


def _span(run: Run) -> tuple[float, float] | None:
    """Start of the first attempt and end of the last, s since 1970; None if the start is not recorded."""
    attempts = run.status.get("attempts") or []
    starts = [value for attempt in attempts if (value := _number(attempt.get("started_unix"))) is not None]
    ends = [value for attempt in attempts if (value := _number(attempt.get("ended_unix"))) is not None]
    return (min(starts), max([*ends, *starts])) if starts else None


def _number(value: Any) -> float | None:
    if isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value):
        return float(value)
    return None
