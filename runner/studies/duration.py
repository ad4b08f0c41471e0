"""Estimates how long the rest of a sweep takes, from its finished runs."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import fmean

from ...strategies.errors import ConfigError
from ..config.launchers import SlurmConfig
from ..config.run_config import RunConfig
from ..launch.launcher import cores_of
from ..records.display import duration
from .plan import PlannedRun


@dataclass(frozen=True, kw_only=True)
class DurationEstimate:
    """Of `runs` runs, one after another: `seconds` of wall clock here, `core_s`, and where that is from."""

    runs: int
    seconds: float
    core_s: float
    basis: str

    @property
    def each_s(self) -> float:
        return self.seconds / self.runs

    def __str__(self) -> str:
        return (
            f"{self.runs} run{'s' * (self.runs != 1)} to do: about {duration(self.seconds)} here, "
            f"{self.core_s / 3600:.2g} core-hours ({self.basis})"
        )


def left(runs: Iterable[PlannedRun]) -> list[RunConfig]:
    """Those that are not finished."""
    return [run.config for run in runs if run.state != "finished"]


def from_finished(runs: Sequence[PlannedRun]) -> DurationEstimate | None:
    """From the wall clock of what is finished of the same sweep; arms of which nothing is take the mean."""
    to_do = left(runs)
    took: dict[str, list[float]] = {}  # seconds, by arm
    for run in runs:
        seconds = _took(run)
        if seconds is not None:
            took.setdefault(run.config.arm_id, []).append(seconds)
    if not to_do or not took:
        return None
    mean = fmean(fmean(seconds) for seconds in took.values())
    each = [fmean(took.get(config.arm_id, [mean])) for config in to_do]
    count = sum(len(seconds) for seconds in took.values())
    return _estimate(to_do, each, f"from {count} finished run{'s' * (count != 1)}")


def at_most(configs: Sequence[RunConfig]) -> str:
    """What jobs of Slurm may use up: their time limits times their tasks; "" for other launchers."""
    hours = sum(
        config.launcher.limit_min / 60 * config.cluster.ranks
        for config in configs
        if isinstance(config.launcher, SlurmConfig)
    )
    return f"at most {hours:.4g} hours of a rank in all (launcher.timeout_min x ranks)" if hours else ""


class Pace:
    """How long what is left of a sweep takes: from the estimate, then from the runs themselves."""

    def __init__(self, each_s: float | None) -> None:
        self._each_s, self._took = each_s, list[float]()

    def took(self, seconds: float) -> None:
        self._took.append(seconds)

    def left_s(self, runs: int) -> float | None:
        """Seconds of `runs` more; None if nothing is known."""
        each = fmean(self._took) if self._took else self._each_s
        return None if each is None else runs * each


def _took(run: PlannedRun) -> float | None:
    """Wall-clock seconds of a finished run of one attempt."""
    if run.state != "finished":
        return None
    try:
        (attempt,) = run.directory.status()["attempts"]
        seconds = float(attempt["ended_unix"]) - float(attempt["started_unix"])
    except (ConfigError, ValueError, KeyError, TypeError):
        return None
    return seconds if math.isfinite(seconds) and seconds > 0 else None


def _estimate(configs: Sequence[RunConfig], each: Sequence[float], basis: str) -> DurationEstimate:
    pairs = list(zip(configs, each, strict=True))
    return DurationEstimate(
        runs=len(configs),
        seconds=math.fsum(each),
        core_s=math.fsum(seconds * cores_of(config) for config, seconds in pairs),
        basis=basis,
    )
