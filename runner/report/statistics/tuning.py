"""What tuning was worth: how much longer the default settings take than the tuned ones.

Source: docs/method.md, "Tuning and pilot".
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from ....strategies.errors import ConfigError
from .estimate import LEVEL, Interval, exponential
from .ratio import Times, welch


@dataclass(frozen=True, kw_only=True)
class Regret:
    """T_default / T_tuned - 1 on scored seeds, as a share; no `interval` below 3 runs on a side."""

    point: float
    interval: Interval | None


def regret(default: Times, tuned: Times, *, level: float = LEVEL) -> Regret:
    """The regret of an arm's default settings. Large in one arm only: the defaults decided between the arms.

    Raises ConfigError without a run on either side.
    """
    if not default.seconds or not tuned.seconds:
        raise ConfigError("default or tuned has no runs: regret needs both on scored seeds")
    means = [sum(times.logs) / len(times.logs) for times in (default, tuned)]
    found = welch(default, tuned, level=level)
    interval = None if found is None else Interval(found.low - 1, found.high - 1)
    return Regret(point=exponential(means[0] - means[1]) - 1, interval=interval)


def check_fair(
    trials: Mapping[str, int], tuning_seeds: Collection[int], scored_seeds: Collection[int]
) -> None:
    """Raises ConfigError unless every arm had the same number of trials and no tuning seed is scored."""
    if len(set(trials.values())) > 1:
        counts = ", ".join(f"{arm} {count}" for arm, count in trials.items())
        raise ConfigError(f"study.tune_trials: {counts}; must be equal for all arms")
    shared = sorted(set(tuning_seeds) & set(scored_seeds))
    if shared:
        raise ConfigError(f"seeds {shared} were tuned on and are scored: choose others for one of the two")
