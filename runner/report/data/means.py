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
    """exp(mean(ln)) of two or more positive values; None for fewer, or if any is missing or not positive."""
    finite = _all_finite(values)
    return statistics.geometric_mean(finite) if finite and min(finite) > 0 else None


def over_runs(values: Sequence[float]) -> float:
    """The geometric mean of positive values; of one alone its own value."""
    return statistics.geometric_mean(values) if len(values) > 1 else values[0]


def mean(values: Sequence[float | None]) -> float | None:
    """Arithmetic mean of two or more values; None for fewer, or if any is missing, NaN or infinite."""
    finite = _all_finite(values)
    return fmean(finite) if finite else None


def _all_finite(values: Sequence[float | None]) -> list[float]:
    """`values` if there are two or more and all are finite numbers, else nothing."""
    finite = [value for value in values if value is not None and math.isfinite(value)]
    return finite if len(finite) == len(values) >= 2 else []


def target_mean(arm: Arm) -> float | None:
    """Geometric mean of the scored crossing times, seconds; None unless all that count reached the target."""
    return geometric_mean([run.to_target_s for run in arm.counted])


def train_mean(arm: Arm) -> float | None:
    """Geometric mean of T_train in seconds over the complete runs."""
    return geometric_mean([run.train_s for run in arm.complete])


def rate_mean(arm: Arm) -> float | None:
    """Geometric mean of the samples per second over the complete runs."""
    return geometric_mean([run.samples_per_s for run in arm.complete])


def final_mean(arm: Arm) -> float | None:
    """Arithmetic mean of the final metric over all runs that count; None if one of them ended in NaN."""
    return mean([run.final for run in arm.counted])


def bytes_mean(arm: Arm, link: str) -> float | None:
    """Arithmetic mean of the payload bytes over `link` per complete run, summed over ranks."""
    return mean([run.payload_bytes(link) for run in arm.complete])


def mean_parts(arm: Arm) -> dict[str, float]:
    """Mean seconds of each part over the runs of `arm` that recorded them; empty if none did."""
    recorded = [run.parts_s for run in arm.complete if run.parts_s]
    return {part: fmean(parts.get(part, 0.0) for parts in recorded) for part in PARTS if recorded}


def time_shares(runs: Sequence[Run]) -> dict[str, float] | None:
    """Shares of training time by `TIME_SHARES`, mean over runs; None if a run has not recorded them."""
    shares = []
    for run in runs:
        parts, blocked = run.parts_s, run.summary.get("blocked_s")
        total = sum(parts.values())
        if not isinstance(blocked, Mapping) or total <= 0:
            return None
        blocked_s = [value for link in LINKS if (value := number(blocked.get(link, 0.0))) is not None]
        if len(blocked_s) < len(LINKS):
            return None
        seconds = [parts.get("compute", 0.0), parts.get("data", 0.0), *blocked_s]
        shares.append([value / total for value in [*seconds, max(0.0, total - sum(seconds))]])
    if not shares:
        return None
    return dict(zip(TIME_SHARES, map(fmean, zip(*shares, strict=True)), strict=True))


# ------------------------------------------------------------------ ranks of a run


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
    device = value_at(run.config, "cluster", "device")
    if value_at(device, "straggler", "rank") is not None:
        return True
    of_ranks = [value_at(device, key) for key in ("speeds", "kind")]
    return any(isinstance(values, list) and len(set(map(str, values))) > 1 for values in of_ranks)
