"""What an arm's runs come to, and only where a mean may be formed. None everywhere else."""

import math
from collections.abc import Sequence

from .arms import Arm


def geometric_mean(values: Sequence[float | None]) -> float | None:
    """exp(mean(ln)) of two or more positive values; None for fewer, or if any is missing or not positive."""
    finite = _all_finite(values)
    if not finite or min(finite) <= 0:
        return None
    return math.exp(math.fsum(math.log(value) for value in finite) / len(finite))


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
    return geometric_mean([run.crossing.scored_s for run in arm.reached if run.crossing])


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
