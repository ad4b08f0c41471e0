"""What each rank got and how long it waited, from its own records and from what the strategy tells."""

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Any

from .data.arms import Comparison
from .data.load import Run
from .tables import PARTS, walk, who

EVEN = 1.02  # times: shares less apart than this are those of whole samples


def shares(run: Run) -> list[float]:
    """By rank: its samples as times an equal share, as far as the strategy tells; else nothing."""
    told = run.summary.get("strategy")
    told = told if isinstance(told, Mapping) else {}
    for key in ("batches", "samples_of_worker"):
        found = told.get(key)
        # A worker may be a whole node: then its samples are not those of a rank.
        if isinstance(found, list) and found and len(found) == len(by_rank(run)):
            whole = [value for value in found if isinstance(value, int | float) and math.isfinite(value)]
            if len(whole) == len(found) and sum(whole) > 0:
                return [value * len(whole) / sum(whole) for value in whole]
    return []


def waited(run: Run) -> list[float]:
    """By rank: the share of its training time that it waited for others; nothing where one tells nothing."""
    found = by_rank(run)
    if not all(times.get("train_s") and "waiting_s" in times for times in found):
        return []
    return [max(0.0, times["waiting_s"]) / times["train_s"] for times in found]


def by_rank(run: Run) -> list[dict[str, float]]:
    """By rank: seconds of training (`train_s`) and of each of its parts (`waiting_s`, …), all attempts."""
    sums: dict[int, dict[str, float]] = defaultdict(lambda: defaultdict(float))
    for row in run.rank_rows:
        found, own = row.get("parts_s"), sums[row["rank"]]
        parts = found if isinstance(found, Mapping) else {}
        for name, value in {"train_s": row.get("train_s"), **{f"{p}_s": parts.get(p) for p in PARTS}}.items():
            if isinstance(value, int | float) and math.isfinite(value):
                own[name] += value
    return [dict(sums[rank]) for rank in sorted(sums)]


def is_uneven(comparison: Comparison) -> bool:
    """Whether some rank is meant to be slower than others, or got another share of the samples."""
    return any(uneven_devices(run) or _uneven_shares(run) for run in comparison.runs)


def uneven_devices(run: Run) -> bool:
    """Whether some rank is meant to be slower than others, or has another device."""
    cluster = run.config.get("cluster")
    device = cluster.get("device") if isinstance(cluster, Mapping) else None
    if not isinstance(device, Mapping):
        return False
    straggler = device.get("straggler")
    slow = isinstance(straggler, Mapping) and straggler.get("rank") is not None
    return slow or any(len(set(map(str, _list(device.get(key))))) > 1 for key in ("speeds", "kind"))


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _uneven_shares(run: Run) -> bool:
    found = shares(run)
    return bool(found) and max(found) > EVEN * min(found)


def ranks_rows(comparisons: Iterable[Comparison]) -> list[dict[str, Any]]:
    """One row per rank of every run in `comparisons`."""
    rows = []
    for comparison, arm, run in walk(comparisons):
        told = shares(run)
        for rank, times in enumerate(by_rank(run)):
            row = who(comparison, arm, run) | {"rank": rank, "train_s": times.get("train_s")}
            row |= {f"{part}_s": times.get(f"{part}_s") for part in PARTS}
            rows.append(row | {"times_equal_share": told[rank] if told else None})
    return rows
