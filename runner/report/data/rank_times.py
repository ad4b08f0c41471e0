"""Samples and times of each rank of a run, from its own records and from the strategy's summary."""

from collections import defaultdict
from collections.abc import Mapping

from .load import PARTS, Run, number, value_at


def shares(run: Run) -> list[float]:
    """Samples of each rank as times an equal share, [ranks]; [] where the strategy does not record them."""
    for key in ("batches", "samples_of_worker"):
        samples = value_at(run.summary, "strategy", key)
        # A worker may be a whole node: then its samples are not those of a rank.
        if isinstance(samples, list) and samples and len(samples) == len(by_rank(run)):
            finite = [value for value in samples if number(value) is not None]
            if len(finite) == len(samples) and sum(finite) > 0:
                return [value * len(finite) / sum(finite) for value in finite]
    return []


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


def uneven_devices(run: Run) -> bool:
    """Whether some rank is meant to be slower than others, or has another device."""
    if value_at(run.config, "cluster", "device", "straggler", "rank") is not None:
        return True
    by_rank = [value_at(run.config, "cluster", "device", key) for key in ("speeds", "kind")]
    return any(isinstance(values, list) and len(set(map(str, values))) > 1 for values in by_rank)
