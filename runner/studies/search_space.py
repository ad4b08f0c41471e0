"""The space that `daso-bench tune` searches, its Sobol points, and a run with the settings of one point.

Three dimensions are common to all arms and start from each arm's own values: the peak learning rate, the
warm-up as a share of the schedule, and the weight decay. A strategy adds at most three keys of its own
(`Strategy.tuned`). The points are scrambled Sobol points, which cover the space evenly also when they are
few. Source: docs/method.md, "Tuning and pilot".
"""

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.stats import qmc

from ...datasets.stream_seeds import stream_seed
from ...strategies.errors import ConfigError
from ..config.run_config import RunConfig

COMMON_KEYS = ("optimizer.lr", "schedule.warmup_epochs", "optimizer.weight_decay")
MOST_STRATEGY_KEYS = 3
RATE_TIMES = 8.0  # the peak rate: an eighth to eight times
LONGEST_WARMUP = 0.25  # of the schedule
DECAY_TIMES = 10.0  # the weight decay: a tenth to ten times
# A default of 0 cannot be multiplied: a quarter of the dimension stays at 0.
ZERO_SHARE, LEAST_DECAY, MOST_DECAY = 0.25, 1e-6, 1e-2
_DIGITS = 4  # of a value: nobody types more


@dataclass(frozen=True, kw_only=True)
class Key:
    """A dimension of the space: `name` (dotted) takes one of `values`, or a number in [low, high].

    `zero`: this share of the dimension is 0. `log`: even in ratios, else in differences. `words`: the range,
    the same for arms that are searched alike.
    """

    name: str
    words: str
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


def space_of(config: RunConfig) -> list[Key | None]:
    """The dimensions: the common ones, None where this run has no such key, then those of its strategy.

    Raises ConfigError for a wrong `tuned` of the strategy.
    """
    rate, decay = config.optimizer.lr, getattr(config.optimizer, "weight_decay", None)
    lr_key = Key(
        name=COMMON_KEYS[0],
        words=f"x 1/{RATE_TIMES:g} to {RATE_TIMES:g}",
        low=rate / RATE_TIMES,
        high=rate * RATE_TIMES,
        log=True,
    )
    warmup_key = Key(
        name=COMMON_KEYS[1],
        words=f"0 to {LONGEST_WARMUP:g} of the schedule",
        high=LONGEST_WARMUP * config.train.epochs,
    )
    decay_key = None if decay is None else _decay(float(decay))
    return [lr_key, warmup_key, decay_key, *_strategy_keys(config)]


def described(config: RunConfig) -> str:
    """The common dimensions in words: equal for arms that are searched alike."""
    common = space_of(config)[: len(COMMON_KEYS)]
    return ", ".join(f"{key.name} {key.words}" for key in common if key is not None)


def sobol_points(study: str, trials: int) -> list[tuple[float, ...]]:
    """A point in [0, 1)^6 for each trial, fixed by the study's name; the point of trial 0 is not used.

    The points of fewer trials are the first of those of more. `trials`: a power of two.
    """
    chance = np.random.default_rng(stream_seed(0, "tune", study))
    dimensions = len(COMMON_KEYS) + MOST_STRATEGY_KEYS
    # scipy has called this argument `seed` from the start; newer stubs know only its later name `rng`.
    sobol = qmc.Sobol(dimensions, scramble=True, seed=chance)  # pyright: ignore[reportCallIssue] (see above)
    return [tuple(float(u) for u in point) for point in sobol.random(trials)]


def settings_of(space: Sequence[Key | None], points: Sequence[Sequence[float]]) -> list[dict[str, Any]]:
    """What each trial changes, by dotted key; trial 0 nothing.

    A dimension that is None moves no other one: each key stays at its coordinate.
    """
    changes = [{key.name: key.at(u) for key, u in zip(space, point, strict=False) if key} for point in points]
    return [{}, *changes[1:]]


def with_settings(config: RunConfig, settings: Mapping[str, Any]) -> RunConfig:
    """The run with `settings`, by dotted key, instead of its own. Raises ConfigError where a check fails."""
    parts: dict[str, dict[str, Any]] = {}
    for name, value in settings.items():
        group, _, key = name.partition(".")
        parts.setdefault(group, {})[key] = value
    changed = {group: dataclasses.replace(getattr(config, group), **keys) for group, keys in parts.items()}
    return dataclasses.replace(config, **changed)


def _decay(default: float) -> Key:
    name = COMMON_KEYS[2]
    if default == 0:
        words = f"0 or {LEAST_DECAY:g} to {MOST_DECAY:g}"
        return Key(name=name, words=words, low=LEAST_DECAY, high=MOST_DECAY, log=True, zero=ZERO_SHARE)
    low, high = default / DECAY_TIMES, default * DECAY_TIMES
    return Key(name=name, words=f"x 1/{DECAY_TIMES:g} to {DECAY_TIMES:g}", low=low, high=high, log=True)


def _strategy_keys(config: RunConfig) -> list[Key]:
    declared: tuple[tuple[str, tuple[Any, ...]], ...] = config.strategy_class.tuned
    name, most = config.strategy_name, MOST_STRATEGY_KEYS
    known = {field.name for field in dataclasses.fields(config.strategy)}
    if len(declared) > most:
        raise ConfigError(f"strategy={name}: `tuned` declares {len(declared)} keys; must be {most} at most")
    for key, values in declared:
        if key not in known or not values:
            raise ConfigError(
                f"strategy={name}: `tuned` declares {key}={list(values)}: no such key, or no value"
            )
    return [
        Key(name=f"strategy.{key}", words=", ".join(map(str, values)), values=tuple(values))
        for key, values in declared
    ]
