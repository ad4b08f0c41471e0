"""Means over an arm's runs, only where a mean may be formed, None elsewhere; and the times of each rank."""

import math
import statistics
from collections import defaultdict
from collections.abc import Mapping, Sequence
from statistics import fmean

from .arms import Arm
from .load import LINKS, PARTS, Run, number, value_at

TIME_SHARES = ("compute", "data", "blocked on intra", "blocked on inter", "other")


def geometric_mean(values: Sequence[float | None]) -> float | None:
    """exp(mean(ln)) of two or more values; None for fewer, or if any is missing, not positive or infinite."""
    known = [value for value in values if value is not None and 0 < value < math.inf]
    return statistics.geometric_mean(known) if len(known) == len(values) >= 2 else None


def over_runs(values: Sequence[float]) -> float:
    """The geometric mean of positive values; of one alone its own value."""
    return statistics.geometric_mean(values) if len(values) > 1 else values[0]


def mean(values: Sequence[float | None]) -> float | None:
    """Arithmetic mean of two or more values; None for fewer, or if any is missing, NaN or infinite."""
    known = [value for value in values if value is not None and math.isfinite(value)]
    return fmean(known) if len(known) == len(values) >= 2 else None


def mean_parts(arm: Arm) -> dict[str, float]:
    """Mean seconds of each part over the runs of `arm` that recorded them; empty if none did."""
    recorded = [run.parts_s for run in arm.complete if run.parts_s]
    return {part: fmean(parts.get(part, 0.0) for parts in recorded) for part in PARTS if recorded}


def time_shares(runs: Sequence[Run]) -> dict[str, float] | None:
    """Shares of training time by `TIME_SHARES`, mean over runs; None if a run has not recorded them."""
    of_runs: list[list[float]] = []
    for run in runs:
        parts, total = run.parts_s, sum(run.parts_s.values())
        blocked = [number(value_at(run.summary, "blocked_s", link)) for link in LINKS]
        blocked_s = [value for value in blocked if value is not None]
        if len(blocked_s) < len(LINKS) or total <= 0:
            return None
        seconds = [parts.get("compute", 0.0), parts.get("data", 0.0), *blocked_s]
        of_runs.append([value / total for value in [*seconds, max(0.0, total - sum(seconds))]])
    return dict(zip(TIME_SHARES, map(fmean, zip(*of_runs, strict=True)), strict=True))


# ------------------------------------------------------------------ ranks of a run


def by_rank(run: Run) -> list[dict[str, float]]:
    """Seconds of training (`train_s`) and of its parts (`waiting_s`, …) of each rank, over all attempts."""
    sums: dict[int, dict[str, float]] = defaultdict(lambda: defaultdict(float))
    for rank, row in run.rank_rows:
        of_rank = sums[rank]  # also of a rank whose rows have no times
        parts = row.parts_s if isinstance(row.parts_s, Mapping) else {}
        for name, value in {"train_s": row.train_s, **{f"{p}_s": parts.get(p) for p in PARTS}}.items():
            if (seconds := number(value)) is not None:
                of_rank[name] += seconds
    return [dict(sums[rank]) for rank in sorted(sums)]
