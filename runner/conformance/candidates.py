"""From what was typed after `daso-bench check` to strategies with their keys."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from omegaconf import DictConfig

from ...strategies.base import Strategy
from ...strategies.errors import ConfigError
from .. import listing
from ..compose import compose
from ..overrides import key_of
from ..typed import locate_target, typed
from .findings import Candidate, RanksOfNodes

BUILTIN = "daso_bench.strategies."
ALL = "all"
RANKS: tuple[RanksOfNodes, ...] = ((1, 1), (2, 2), (2, 1))
# Periods are shortened to fit several into the trial run, unless the user names the key.
SMALL: dict[str, dict[str, Any]] = {
    "local_sgd": {"sync_every": 3},
    "post_local_sgd": {"sync_every": 3},
    "ednncomm": {"sync_every": 3},
    "diloco": {"sync_every": 3},
    "slowmo": {"sync_every": 3},
}


def candidates(words: Sequence[str], config_dir: Path | None = None) -> list[tuple[Candidate, list[str]]]:
    """The strategies that `words` name, each with the overrides of its keys that are in force.

    `strategy=NAME`, `strategy=A,B` or `strategy=all`; without it all built-in ones. `strategy.KEY=VALUE` goes
    to each of them.

    Raises:
        ConfigError: an unknown strategy or key, or a word about anything else.
    """
    own: list[str] = []
    names: list[str] = []
    for word in words:
        key, _, value = word.partition("=")
        if key == "strategy" and value:
            names += [name.strip() for name in value.split(",")]
        elif key_of(word).startswith("strategy.") and value:
            own.append(word)
        else:
            raise ConfigError(
                f"{word}: check takes strategy=NAME and strategy.KEY=VALUE; the run it tries is its own"
            )
    if not names:
        names = [entry.name for entry in listing.entries("strategy")]
    elif ALL in names:
        names = [entry.name for entry in listing.entries("strategy", [config_dir] if config_dir else [])]
    return [_candidate(name, own, config_dir) for name in dict.fromkeys(names)]


def _candidate(name: str, own: Sequence[str], config_dir: Path | None) -> tuple[Candidate, list[str]]:
    named = {key_of(word) for word in own}
    words = list(own)
    kind = locate_target(_composed(name, [], config_dir), "strategy")
    if not issubclass(kind, Strategy):
        raise ConfigError(f"strategy={name}: {kind.__name__} is not a subclass of {BUILTIN}base.Strategy")
    builtin = kind.__module__.removeprefix(BUILTIN) if kind.__module__.startswith(BUILTIN) else None
    for key, value in SMALL.get(builtin or "", {}).items():
        if f"strategy.{key}" not in named:
            words.append(f"strategy.{key}={value}")
    config = typed(kind.Config, _composed(name, words, config_dir), "strategy")
    return Candidate(name, kind, config, builtin), words


def _composed(name: str, words: Sequence[str], config_dir: Path | None) -> DictConfig:
    (found,) = compose([f"strategy={name}", *words], sweep=False, config_dir=config_dir)
    if found.config is None:
        raise found.error or ConfigError(f"strategy={name}: cannot be composed")
    return found.config.strategy


def ranks_of(text: str) -> RanksOfNodes:
    """`2,1` as (2, 1): ranks of each node.

    Raises:
        ConfigError: not whole numbers >= 1 separated by commas.
    """
    parts = text.split(",")
    if not all(part.strip().isdigit() and int(part) > 0 for part in parts):
        raise ConfigError(f"--ranks {text}: must be ranks of each node, whole numbers >= 1 as in 2,1")
    return tuple(int(part) for part in parts)
