"""Equal tuning of all arms: the points of the search, the trial that won, the regret of the default settings.

All arms are searched at the same points; trial 0 is the default. Points are scrambled Sobol numbers: they
cover the space evenly, also after a few. Source: docs/method.md, "Tuning and pilot".
"""

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.stats import qmc

from ....strategies.errors import ConfigError
from ....strategies.seeds import derive
from ...records.tuning_trials import check_trials
from .ratio import LEVEL, Interval, Times, exponential, welch

COMMON = 3  # dimensions that all arms have: peak rate, warm-up, weight decay
OWN = 3  # further dimensions of a strategy
_DIGITS = 4  # of a value, few enough to type


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
    """The result of a trial. `state`: the run's, or `refused`. `reason`: why there is no result.

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
    generator = np.random.default_rng(derive(0, "tune", study))
    # `seed` is the name since scipy's first Sobol numbers; newer stubs know its successor `rng` only.
    sobol = qmc.Sobol(COMMON + OWN, scramble=True, seed=generator)  # pyright: ignore[reportCallIssue] (see above)
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
    changes = [{key.name: key.at(u) for key, u in zip(keys, point, strict=False) if key} for point in points]
    return [{}, *changes[1:]]


def winner(trials: Sequence[Trial], *, lower: bool = False) -> Trial | None:
    """The trial with the smallest crossing time; where none crossed, with the best last metric.

    One that crossed is better than all that did not; of equals the first. None if all failed. `lower`: the
    metric is a loss.
    """
    finished = [trial for trial in trials if not trial.failed]
    return min(finished, key=lambda trial: _rank(trial, lower), default=None)


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
    for key in ("crossed_s", "train_s"):
        times = {
            arm: [0.0 if trial.failed else float(getattr(trial, key) or 0.0) for trial in trials]
            for arm, trials in arms.items()
        }
        shared = [place for place, seconds in enumerate(zip(*times.values(), strict=True)) if all(seconds)]
        if shared:
            return {arm: [seconds[place] for place in shared] for arm, seconds in times.items()}
    return {arm: [] for arm in arms}


def choose_baseline(tuning: Sequence[tuple[str, Times]]) -> str:
    """The name with the smallest geometric mean time on the tuning seeds, the first of equals.

    Fixed in the plan and not chosen anew in each run. Raises ConfigError without candidates or for unequal
    numbers of runs, since both get the same tuning budget.
    """
    counts = {name: len(times.seconds) for name, times in tuning}
    if not counts or min(counts.values()) == 0 or len(set(counts.values())) > 1:
        raise ConfigError(f"tuning runs {counts}: must be the same number for each, 1 or more")
    return min(tuning, key=lambda pair: math.fsum(pair[1].logs))[0]


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
    ratio = welch(default, tuned, level=level)
    interval = None if ratio is None else Interval(ratio.low - 1, ratio.high - 1)
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
