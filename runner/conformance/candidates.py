"""Candidates of `daso-bench check`: the strategies and keys that its command line names."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ...strategies.base import Strategy
from ...strategies.errors import ConfigError
from ..config import groups
from ..config.compose import compose
from ..config.overrides import key_of
from ..config.typed import locate_target, plain, typed
from .checks import Candidate, RanksOfNodes

BUILTIN = "daso_bench.strategies."
ALL = "all"
RANKS: tuple[RanksOfNodes, ...] = ((1, 1), (2, 2), (2, 1))
# Periods are shortened to fit several into the trial run and to cut the last one short, unless the user names
# the key.
SMALL: dict[str, dict[str, Any]] = {
    "local_sgd": {"sync_every": 4},
    "post_local_sgd": {"sync_every": 4},
    "ednncomm": {"sync_every": 4},
    "diloco": {"sync_every": 4},
    "slowmo": {"sync_every": 4},
}


def candidates(words: Sequence[str], config_dir: Path | None = None) -> list[tuple[Candidate, list[str]]]:
    """The strategies that `words` name (see `asked`), each with the overrides of its keys.

    Raises:
        ConfigError: an unknown strategy or key, or a word about anything else.
    """
    names, overrides = asked(words, config_dir)
    return [_candidate(name, overrides, config_dir) for name in names]


def asked(words: Sequence[str], config_dir: Path | None = None) -> tuple[list[str], list[str]]:
    """Names of strategies, and overrides of keys for each of them.

    `strategy=NAME`, `strategy=A,B`, or `strategy=all` with those of `config_dir`; without it all built-in.

    Raises:
        ConfigError: a word about anything else.
    """
    overrides: list[str] = []
    names: list[str] = []
    for word in words:
        key, _, value = word.partition("=")
        if key == "strategy" and value:
            names += [name.strip() for name in value.split(",")]
        elif key_of(word).startswith("strategy.") and value:
            overrides.append(word)
        else:
            raise ConfigError(
                f"{word}: check takes strategy=NAME and strategy.KEY=VALUE; the run it tries is its own"
            )
    folders = [config_dir] if config_dir and ALL in names else []
    if not names or ALL in names:
        names = list(groups.entries("strategy", folders))
    return list(dict.fromkeys(names)), overrides


def _candidate(name: str, overrides: Sequence[str], config_dir: Path | None) -> tuple[Candidate, list[str]]:
    (composed,) = compose([f"strategy={name}", *overrides], sweep=False, config_dir=config_dir)
    if composed.config is None:
        raise composed.error or ConfigError(f"strategy={name}: cannot be composed")
    keys = plain(composed.config.strategy, "strategy")
    kind = locate_target(keys, "strategy")
    if not issubclass(kind, Strategy):
        raise ConfigError(f"strategy={name}: {kind.__name__} is not a subclass of {BUILTIN}base.Strategy")
    builtin = kind.__module__.removeprefix(BUILTIN) if kind.__module__.startswith(BUILTIN) else None
    named = {key_of(word) for word in overrides}
    small = {
        key: value for key, value in SMALL.get(builtin or "", {}).items() if f"strategy.{key}" not in named
    }
    words = [*overrides, *(f"strategy.{key}={value}" for key, value in small.items())]
    return Candidate(name, kind, typed(kind.Config, {**keys, **small}, "strategy"), builtin), words


def ranks_of(text: str) -> RanksOfNodes:
    """`2,1` as (2, 1): ranks of each node.

    Raises:
        ConfigError: not whole numbers >= 1 separated by commas.
    """
    parts = text.split(",")
    if not all(part.strip().isdigit() and int(part) > 0 for part in parts):
        raise ConfigError(f"--ranks {text}: must be ranks of each node, whole numbers >= 1 as in 2,1")
    return tuple(int(part) for part in parts)
