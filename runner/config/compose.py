"""From the user's words to composed configurations, by Hydra, and Hydra's errors as one sentence of ours."""

import contextlib
import importlib
import os
import re
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from pathlib import Path

import hydra
import yaml
from hydra.errors import HydraException, MissingConfigException, OverrideParseException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from ...strategies.errors import ConfigError, nearest, unknown
from ..machine.cores import usable_cores
from . import groups
from .overrides import key_of, quote_text, refuse_sexagesimal, spelling
from .parts import RunInfo, StudyInfo, TrainConfig
from .run_config import RunConfig
from .typed import unknown_key

TOP_LEVEL = (*groups.RUN_GROUPS, "train", "seed", "run", "study", "results_dir")
_TYPED = {"train": TrainConfig, "run": RunInfo, "study": StudyInfo}
_MISSING = re.compile(r"Could not find '(?P<group>[^']+)/(?P<name>[^'/]+)'")
_NO_KEY = re.compile(r"Could not override '(?P<key>[^']+)'")


@dataclass(frozen=True, kw_only=True)
class Request:
    """One run that was asked for: the words for it, and what became of them, or the error that refuses it.

    `composed`: by Hydra; None also for a run that was derived from another. `config`: checked, by `load.py`.
    """

    words: tuple[str, ...]
    composed: DictConfig | None = None
    config: RunConfig | None = None
    error: ConfigError | None = None

    @property
    def path(self) -> Path | None:
        """Its run directory, absolute; None for a refused one."""
        return None if self.config is None else self.config.path

    @property
    def title(self) -> str:
        """Its run id and name, or what was typed for it."""
        return " ".join(self.words) if self.config is None else self.config.title


class Collector:
    """The task function for Hydra, which calls it with every composed job; it keeps them."""

    def __init__(self, words: Sequence[str], folders: Sequence[Path]) -> None:
        self.words = list(words)
        self.folders = folders
        self.requests: list[Request] = []

    def __call__(self, config: DictConfig) -> None:
        words = OmegaConf.select(config, "hydra.overrides.task")
        self.requests.append(Request(words=tuple(self.words if words is None else words), composed=config))

    def refuse(self, overrides: Sequence[str], error: Exception) -> None:
        refusal = translate(error, overrides, self.folders)
        self.requests.append(Request(words=tuple(overrides), error=refusal))


def compose(words: Sequence[str], *, sweep: bool, config_dir: Path | None = None) -> list[Request]:
    """All runs that `words` ask for, not checked yet, in Hydra's order: one, or with `sweep` the whole grid.

    Raises ConfigError for words that no run can be composed with. A job of a sweep that does not compose is
    in the result with its error.
    """
    refuse_nonsense(words)
    if config_dir is not None:
        refuse_sexagesimal(config_dir)
    # The only name Hydra takes plugins from; in an editable install no type checker sees it.
    importlib.import_module("hydra_plugins.daso_bench").register()
    OmegaConf.register_new_resolver("cores", _cores, replace=True)
    quoted = quote_text(words, sweep=sweep)
    folders = [config_dir] if config_dir else []
    run_words = [word for word in quoted if not key_of(word).startswith(("hydra.", "hydra/"))]
    collector = Collector(run_words, folders)
    # In a sweep Hydra itself does not get the words: it would check them with the *default* strategy, and
    # `strategy=daso,hsgd strategy.sync_every=2` is right for both and wrong for ddp.
    passed = [word for word in quoted if not sweep or key_of(word) == "study" or word not in run_words]
    flags = (["--multirun"] if sweep else []) + ([f"--config-dir={config_dir}"] if config_dir else [])
    run = hydra.main(version_base=None, config_path=str(groups.CONF), config_name="config")(collector)
    try:
        with _command_line([*flags, *passed]):
            run()
    except (HydraException, OmegaConfBaseException) as error:
        raise translate(error, quoted, folders) from error
    except yaml.YAMLError as error:  # names the file and the line
        raise ConfigError(" ".join(str(error).split())) from error
    return collector.requests


def compose_one(words: Sequence[str], *, config_dir: Path | None = None) -> DictConfig:
    """The one configuration that `words` ask for, not checked yet. Raises ConfigError."""
    first, *others = compose(words, sweep=False, config_dir=config_dir)
    if others or first.composed is None:
        raise first.error or ConfigError("a study is many runs; choose without +study")
    return first.composed


def _cores(*numbers: object) -> int:
    """`${cores:TIMES,OVER,NODES}` in a configuration: of the usable cores of this machine TIMES so many,
    shared by OVER, at least 1; and that on each of NODES machines like it.

    All are 1 unless given. The configuration that is run and kept holds the number.
    """
    if len(numbers) > 3 or not all(re.fullmatch("[1-9][0-9]*", str(number)) for number in numbers):
        raise ConfigError(
            f"${{cores:{','.join(map(str, numbers))}}}: takes up to three whole numbers >= 1 (times, over, "
            "nodes): ${cores:16} is 16 a core, ${cores:1,2} half the cores"
        )
    times, over, nodes = (*map(int, map(str, numbers)), 1, 1, 1)[:3]
    return max(1, usable_cores() * times // over) * nodes


@contextlib.contextmanager
def _command_line(arguments: Sequence[str]) -> Iterator[None]:
    """Hydra reads its words from `sys.argv`, and reports errors itself unless HYDRA_FULL_ERROR is set."""
    argv, full_error = sys.argv, os.environ.get("HYDRA_FULL_ERROR")
    sys.argv = [argv[0], *arguments]
    os.environ["HYDRA_FULL_ERROR"] = "1"
    try:
        yield
    finally:
        sys.argv = argv
        if full_error is None:
            del os.environ["HYDRA_FULL_ERROR"]
        else:
            os.environ["HYDRA_FULL_ERROR"] = full_error


def refuse_nonsense(words: Sequence[str]) -> None:
    """Raises ConfigError for words that Hydra would refuse in its own terms, or accept."""
    for word in words:
        key, value = key_of(word), word.partition("=")[2].strip()
        if not key and word.strip():
            raise ConfigError(f"{word}: must be KEY=VALUE (daso-bench --help shows the commands)")
        if key in groups.GROUPS and (value in ("", "null") or value.startswith("[")) and "=" in word:
            names = f"`daso-bench list {groups.plural(key)}`"
            raise ConfigError(f"{word}: must be one name of {names}; several make a sweep: -m {key}=A,B")


def translate(error: Exception, words: Sequence[str], folders: Sequence[Path] = ()) -> ConfigError:
    """The ConfigError that says what `error` means to someone who typed `words`."""
    text = str(error)
    if isinstance(error, OverrideParseException):
        word = str(error.override)
        if "=" not in word:
            return ConfigError(f"{word}: must be KEY=VALUE (daso-bench --help shows the commands)")
        working = f"this spelling works: {spelling(word)}"
        return ConfigError(f"{word}: the value holds a character that needs quotes; {working}")
    missing = _MISSING.search(text)
    if isinstance(error, MissingConfigException) and missing:
        return _unknown_choice(missing["group"], missing["name"], error.options or [])
    no_key = _NO_KEY.search(text)
    if no_key:
        return _unknown_key(no_key["key"], words, folders)
    if "Ambiguous value" in text:
        word = _first_line(text).partition("'")[2].rstrip("'")
        return ConfigError(f"{word}: several values need a sweep: daso-bench -m")
    cause = error.__cause__
    return ConfigError(_first_line(text) + (f": {_first_line(str(cause))}" if cause else ""))


def _unknown_choice(group: str, name: str, options: Sequence[str]) -> ConfigError:
    if len(options) <= groups.MANY:
        return unknown(group, name, options)
    near = nearest(name, options)
    hint = f" (did you mean {near!r}?)" if near else ""
    return ConfigError(
        f"{group}={name}: unknown{hint}; `daso-bench list {groups.plural(group)}` shows all {len(options)}"
    )


def _unknown_key(key: str, words: Sequence[str], folders: Sequence[Path]) -> ConfigError:
    parent, _, name = key.rpartition(".")
    if parent in _TYPED:
        return unknown_key(parent, name, [field.name for field in fields(_TYPED[parent])])
    if key == "study":
        return ConfigError("study: a study is added with a plus: +study=NAME (`daso-bench list studies`)")
    if key in groups.GROUPS:
        hint = f"`daso-bench list {groups.plural(key)}`"
        return ConfigError(
            f"{key}: takes one name, {key}=NAME ({hint}); its values are set as {key}.KEY=VALUE"
        )
    if not parent:
        return unknown_key("", name, TOP_LEVEL)
    if parent not in groups.GROUPS:
        return ConfigError(f"{key}: unknown key")
    choices = {**groups.default_choices(), **{key_of(word): word.partition("=")[2] for word in words}}
    choice = choices.get(parent, "")
    return ConfigError(
        f"{unknown_key(parent, name, groups.keys(parent, choice, folders))} ({parent}={choice})"
    )


def _first_line(text: str) -> str:
    return next((line.strip() for line in text.splitlines() if line.strip()), "")
