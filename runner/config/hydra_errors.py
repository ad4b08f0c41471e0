"""Hydra's and OmegaConf's errors as one sentence of ours: what was given, what is allowed, what is near."""

import re
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path

from hydra.errors import MissingConfigException, OverrideParseException

from ...strategies.errors import ConfigError, nearest, unknown
from . import groups
from .load import TOP_LEVEL
from .overrides import key_of, spelling
from .study import RunInfo, StudyInfo
from .train import TrainConfig
from .typed import unknown_key

_TYPED = {"train": TrainConfig, "run": RunInfo, "study": StudyInfo}
_MISSING = re.compile(r"Could not find '(?P<group>[^']+)/(?P<name>[^'/]+)'")
_NO_KEY = re.compile(r"Could not override '(?P<key>[^']+)'")


def refuse_nonsense(words: Sequence[str]) -> None:
    """Raises ConfigError for words of which Hydra speaks in its own errors, or in none."""
    for word in words:
        key, value = key_of(word), word.partition("=")[2].strip()
        if not key and word.strip():
            raise ConfigError(f"{word}: must be KEY=VALUE (daso-bench --help shows the commands)")
        if key in groups.GROUPS and (value in ("", "null") or value.startswith("[")) and "=" in word:
            names = f"`daso-bench list {groups.plural(key)}`"
            raise ConfigError(f"{word}: must be one name of {names}; several make a sweep: -m {key}=A,B")
        if not word.isprintable() and any("\ud800" <= letter <= "\udfff" for letter in word):
            raise ConfigError(f"{word!a}: not in this terminal's encoding; use UTF-8 (LC_ALL)")


def translate(error: Exception, words: Sequence[str], folders: Sequence[Path] = ()) -> ConfigError:
    """The ConfigError that says what `error` means to someone who typed `words`."""
    text = str(error)
    if isinstance(error, OverrideParseException):
        return _refused_by_grammar(error)
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


def _refused_by_grammar(error: OverrideParseException) -> ConfigError:
    word = str(error.override)
    if "=" not in word:
        return ConfigError(f"{word}: must be KEY=VALUE (daso-bench --help shows the commands)")
    return ConfigError(
        f"{word}: the value holds a character that needs quotes; this spelling works: {spelling(word)}"
    )


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
    if parent == "":
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
