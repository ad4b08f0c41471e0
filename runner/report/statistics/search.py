"""A fair search for better settings: the same points for all arms, trial 0 the default, and which trial won.

Points are scrambled Sobol numbers: they cover the space evenly, also after a few. Source: docs/method.md,
"Tuning and pilot".
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.stats import qmc

from ....strategies.errors import ConfigError
from ....strategies.seeds import derive
from ...records.tuning_trials import check_trials

COMMON = 3  # dimensions that all arms have: peak rate, warm-up, weight decay
OWN = 3  # dimensions that a strategy may have besides
_DIGITS = 4  # of a value: nobody types more


@dataclass(frozen=True, kw_only=True)
class Key:
    """A dimension of the space: `name` (dotted) takes one of `values`, or a number in [low, high].

    `zero`: this share of the dimension is 0. `log`: even in ratios, else in differences. `said`: the range in
    words, the same for arms that are searched alike.
    """

    name: str
    said: str
    values: tuple[Any, ...] = ()
    low: float = 0.0
    high: float = 0.0
    log: bool = False
    zero: float = 0.0

    def at(self, u: float) -> Any:
        """The value at `u`, in [0, 1)."""
        if self.values:
            return self.values[int(u * len(self.values))]
        if u < self.zero:
            return 0.0
        u = (u - self.zero) / (1 - self.zero)
        value = self.low * (self.high / self.low) ** u if self.log else self.low + (self.high - self.low) * u
        return float(f"{value:.{_DIGITS}g}")


@dataclass(frozen=True, kw_only=True)
class Trial:
    """What became of a trial. `state`: the run's, or `refused`. `reason`: why there is no result.

    `crossed_s`: scored crossing time, seconds of T_train, None without one. `metric`: the last evaluation's.
    `train_s`: seconds of T_train used.
    """

    number: int
    state: str
    reason: str = ""
    crossed_s: float | None = None
    metric: float | None = None
    train_s: float = 0.0

    @property
    def failed(self) -> bool:
        """Whether it gave no result that could be chosen; a diverged run is one that gave none."""
        return self.state != "finished"


def coordinates(study: str, trials: int) -> list[tuple[float, ...]]:
    """A point in [0, 1) to the power of 6 for each trial, fixed by the study's name; trial 0's is not used.

    Points of fewer trials are the first of those of more.
    """
    check_trials(trials)
    chance = np.random.default_rng(derive(0, "tune", study))
    # `seed` is the name since scipy's first Sobol numbers; newer stubs know its successor `rng` only.
    sobol = qmc.Sobol(COMMON + OWN, scramble=True, seed=chance)  # pyright: ignore[reportCallIssue] (see above)
    return [tuple(float(u) for u in point) for point in sobol.random(trials)]


def settings(
    common: Sequence[Key | None], own: Sequence[Key], points: Sequence[Sequence[float]]
) -> list[dict[str, Any]]:
    """What each trial changes, by dotted key; trial 0 nothing.

    Args:
        common: the key of each of the three dimensions that all arms have, None where an arm has none for it:
            the others stay at their coordinates.
        own: at most three keys of the strategy.

    Raises ConfigError for more of either.
    """
    if len(common) != COMMON or len(own) > OWN:
        raise ConfigError(
            f"{len(common)} common and {len(own)} own keys: must be {COMMON}, and {OWN} at most"
        )
    keys = [*common, *own]
    found = [{key.name: key.at(u) for key, u in zip(keys, point, strict=False) if key} for point in points]
    return [{}, *found[1:]]


def winner(trials: Sequence[Trial], *, lower: bool = False) -> Trial | None:
    """The trial with the smallest crossing time; where none crossed, with the best last metric.

    One that crossed is better than all that did not; of equals the first. None if all failed. `lower`: the
    metric is a loss.
    """
    left = [trial for trial in trials if not trial.failed]
    return min(left, key=lambda trial: _rank(trial, lower), default=None)


def _rank(trial: Trial, lower: bool) -> tuple[bool, float]:
    if trial.crossed_s is not None:
        return False, trial.crossed_s
    if trial.metric is None or math.isnan(trial.metric):
        return True, math.inf
    return True, trial.metric if lower else -trial.metric


def in_common(arms: Mapping[str, Sequence[Trial]]) -> dict[str, list[float]]:
    """By arm the seconds of the trials that gave a time in every arm, so that all have the same seeds and
    points: crossing times if some trial crossed everywhere, else the time of the whole schedule.
    """
    for read in (_crossed, _whole):
        times = [[read(trial) for trial in trials] for trials in arms.values()]
        both = [place for place, found in enumerate(zip(*times, strict=True)) if all(found)]
        if both:
            return {
                arm: [float(own[place] or 0) for place in both] for arm, own in zip(arms, times, strict=True)
            }
    return {arm: [] for arm in arms}


def _crossed(trial: Trial) -> float | None:
    return None if trial.failed else trial.crossed_s


def _whole(trial: Trial) -> float | None:
    return None if trial.failed else trial.train_s
