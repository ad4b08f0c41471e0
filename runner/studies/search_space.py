"""What `daso-bench tune` searches of a run, and a run with other settings.

Common to all arms, from each arm's own values: the peak learning rate, the warm-up as a share of the
schedule, and the weight decay. A strategy adds at most three keys of its own (`Strategy.tuned`). Source:
docs/method.md, "Tuning and pilot".
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

from ...strategies.errors import ConfigError
from ..config.schema import RunConfig, strategy_name
from ..report.statistics.tuning import OWN, Key

RATE_TIMES = 8.0  # the peak rate: an eighth to eight times
LONGEST_WARMUP = 0.25  # of the schedule
DECAY_TIMES = 10.0  # the weight decay: a tenth to ten times
# Where none is the default there is nothing to multiply: a quarter of the dimension stays at none.
ZERO_SHARE, LEAST_DECAY, MOST_DECAY = 0.25, 1e-6, 1e-2
COMMON_KEYS = ("optimizer.lr", "schedule.warmup_epochs", "optimizer.weight_decay")


def space_of(config: RunConfig) -> tuple[list[Key | None], list[Key]]:
    """The keys of the dimensions that all arms have, None where this run has no such key; and its own.

    Raises ConfigError for an optimizer without `lr`, and for a strategy whose `tuned` cannot be.
    """
    rate, decay = getattr(config.optimizer, "lr", None), getattr(config.optimizer, "weight_decay", None)
    if not isinstance(rate, float):
        name = type(config.optimizer).__name__
        raise ConfigError(f"optimizer={name}: has no number lr to tune; give it one, or tune by hand")
    warmup = getattr(config.schedule, "warmup_epochs", None)
    common = [
        Key(
            name=COMMON_KEYS[0],
            said=f"x 1/{RATE_TIMES:g} to {RATE_TIMES:g}",
            low=rate / RATE_TIMES,
            high=rate * RATE_TIMES,
            log=True,
        ),
        None
        if warmup is None
        else Key(
            name=COMMON_KEYS[1],
            said=f"0 to {LONGEST_WARMUP:g} of the schedule",
            high=LONGEST_WARMUP * config.train.epochs,
        ),
        None if decay is None else _decay(float(decay)),
    ]
    return common, _own(config)


def described(config: RunConfig) -> str:
    """The space that all arms share, in words: equal for arms that are searched alike."""
    return ", ".join(f"{key.name} {key.said}" for key in space_of(config)[0] if key is not None)


def changed(config: RunConfig, settings: Mapping[str, Any]) -> RunConfig:
    """The run with `settings`, by dotted key, instead of its own. Raises ConfigError where it cannot be."""
    parts: dict[str, dict[str, Any]] = {}
    for name, value in settings.items():
        group, _, key = name.partition(".")
        parts.setdefault(group, {})[key] = value
    new = {group: dataclasses.replace(getattr(config, group), **values) for group, values in parts.items()}
    return dataclasses.replace(config, **new)


def value_of(config: RunConfig, name: str) -> Any:
    """What `config` has for a dotted key."""
    group, _, key = name.partition(".")
    return getattr(getattr(config, group), key)


def _decay(default: float) -> Key:
    name = COMMON_KEYS[2]
    if default == 0:
        said = f"0 or {LEAST_DECAY:g} to {MOST_DECAY:g}"
        return Key(name=name, said=said, low=LEAST_DECAY, high=MOST_DECAY, log=True, zero=ZERO_SHARE)
    low, high = default / DECAY_TIMES, default * DECAY_TIMES
    return Key(name=name, said=f"x 1/{DECAY_TIMES:g} to {DECAY_TIMES:g}", low=low, high=high, log=True)


def _own(config: RunConfig) -> list[Key]:
    """Keys of a strategy; one that somebody else wrote, by another contract, has none to declare."""
    declared: tuple[tuple[str, tuple[Any, ...]], ...] = getattr(config.strategy_class, "tuned", ())
    name = strategy_name(config)
    known = {field.name for field in dataclasses.fields(config.strategy)}
    if len(declared) > OWN:
        raise ConfigError(f"strategy={name}: `tuned` declares {len(declared)} keys; must be {OWN} at most")
    for key, values in declared:
        if key not in known or not values:
            raise ConfigError(
                f"strategy={name}: `tuned` declares {key}={list(values)}: no such key, or no value"
            )
    return [
        Key(name=f"strategy.{key}", said=", ".join(map(str, values)), values=tuple(values))
        for key, values in declared
    ]
