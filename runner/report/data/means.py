"""Means over an arm's runs, only where a mean may be formed. None everywhere else."""

import math
from collections.abc import Mapping, Sequence
from statistics import fmean

from .arms import Arm
from .load import PARTS, Run, number
from .run_files import LINKS

TIME_SHARES = ("compute", "data", "blocked on intra", "blocked on inter", "other")


def geometric_mean(values: Sequence[float | None]) -> float | None:
    """exp(mean(ln)) of two or more positive values; None for fewer, or if any is missing or not positive."""
    finite = _all_finite(values)
    if not finite or min(finite) <= 0:
        return None
    return math.exp(math.fsum(math.log(value) for value in finite) / len(finite))


def over_runs(values: Sequence[float]) -> float:
    """The geometric mean of positive values; of one alone its own value."""
    return math.exp(fmean(map(math.log, values))) if len(values) > 1 else values[0]


def mean(values: Sequence[float | None]) -> float | None:
    """Arithmetic mean of two or more values; None for fewer, or if any is missing, NaN or infinite."""
    finite = _all_finite(values)
    return math.fsum(finite) / len(finite) if finite else None


def _all_finite(values: Sequence[float | None]) -> list[float]:
    """`values` if there are two or more and all are finite numbers, else nothing."""
    finite = [value for value in values if value is not None and math.isfinite(value)]
    return finite if len(finite) == len(values) and len(finite) >= 2 else []


def target_mean(arm: Arm) -> float | None:
    """Geometric mean of the scored crossing times, seconds; only if all that count reached the target."""
    if len(arm.reached) != len(arm.counted):
        return None
    return geometric_mean([run.to_target_s for run in arm.reached])


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
