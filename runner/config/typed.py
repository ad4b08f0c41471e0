"""Makes one frozen, checked dataclass of a plain group of the composed configuration.

Past `typed()` there is no `DictConfig`, no look-up by text and no `**kwargs`: a group is a frozen,
keyword-only dataclass (of values, or of such dataclasses) whose `__post_init__` has checked the ranges.
"""

import copy
import dataclasses
import importlib
import types
import typing
from collections.abc import Iterable, Mapping
from functools import cache
from types import NoneType
from typing import Any, TypeVar

from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException, ValidationError

from ...strategies.errors import ConfigError, nearest
from .overrides import escape

T = TypeVar("T")

TARGET = "_target_"
_FROM_RESOLVER = "ConfigError raised while resolving interpolation: "
_WORDS = {int: "a whole number", float: "a number", bool: "true or false", str: "text"}


def plain(node: DictConfig | Mapping[str, Any], where: str = "") -> dict[str, Any]:
    """A resolved dict of builtin values. Raises ConfigError for an interpolation that leads nowhere."""
    if not isinstance(node, DictConfig):
        return dict(node)
    try:
        values = OmegaConf.to_container(node, resolve=True)
    except OmegaConfBaseException as error:
        # The exception knows the key. The text of an error of our own resolvers is a sentence already.
        key = error.full_key or where
        if where and not key.startswith(where):
            key = f"{where}.{key}"
        reason = str(error).splitlines()[0].removeprefix(_FROM_RESOLVER)
        raise ConfigError(f"{key or 'config'}: {reason}") from error
    if not isinstance(values, dict):
        raise ConfigError(f"{where}: must hold keys and values")
    return {str(key): value for key, value in values.items()}


def typed(config_class: type[T], node: DictConfig | Mapping[str, Any], where: str) -> T:
    """Make the frozen `config_class` out of `node`; `where` is the group's name for messages ("train").

    Unknown keys are refused even when they came with `+`; `_target_` is not a key of the class. A scalar for
    a field annotated as a list or tuple is wrapped (OmegaConf refuses `int | list[int]`).
    Raises ConfigError naming the key, the value and what is allowed.
    """
    if not isinstance(node, DictConfig | Mapping):
        raise ConfigError(f"{where}={node}: must hold keys and values, not a single value")
    values = plain(node, where)
    values.pop(TARGET, None)
    hints = typing.get_type_hints(config_class)
    names = [field.name for field in dataclasses.fields(typing.cast(Any, config_class)) if field.init]
    checked = copy.deepcopy(_structured(config_class))
    parts: dict[str, Any] = {}  # dataclasses inside this one
    for key, value in values.items():
        if key not in names:
            raise unknown_key(where, key, names)
        if dataclasses.is_dataclass(hints[key]):
            parts[key] = typed(typing.cast(type[Any], hints[key]), value, f"{where}.{key}")
            continue
        _assign(checked, key, value, hints[key], f"{where}.{key}")
    missing = [name for name in names if OmegaConf.is_missing(checked, name)]
    if missing:
        raise ConfigError(f"{where}.{missing[0]}: must be given ({_allowed(hints[missing[0]])})")
    nested = {name for name in names if dataclasses.is_dataclass(hints[name])}
    given = {name: _frozen(value) for name, value in plain(checked, where).items() if name in names}
    arguments = {name: value for name, value in given.items() if name not in nested} | parts
    try:
        return config_class(**arguments)
    except ConfigError:
        raise
    except ValueError as error:
        raise ConfigError(str(error)) from error


@cache
def _structured(config_class: type[Any]) -> DictConfig:
    """The fields of `config_class` with their defaults; made once, for a sweep needs it for each run."""
    fields = OmegaConf.structured(config_class)
    OmegaConf.set_readonly(fields, False)  # a frozen dataclass arrives read-only
    return fields


def unknown_key(where: str, key: str, names: Iterable[str]) -> ConfigError:
    """The error for a key that the group `where` (empty: top level) does not have: `names` are its keys."""
    prefix = f"{where}." if where else ""
    names = list(names)
    near = nearest(key, names)
    hint = f" (did you mean {prefix}{near}?)" if near else ""
    known = ", ".join(prefix + name for name in names) or "none"
    return ConfigError(f"{prefix}{key}: unknown key{hint}; known: {known}")


def locate_target(node: DictConfig | Mapping[str, Any], group: str) -> type[Any]:
    """The class that the group's `_target_` names. Raises ConfigError when there is none to be imported."""
    dotted = plain(node, group).get(TARGET) if isinstance(node, DictConfig | Mapping) else None
    if not isinstance(dotted, str) or "." not in dotted:
        raise ConfigError(f"{group}.{TARGET}={dotted}: must be the dotted path of a class")
    module, _, name = dotted.rpartition(".")
    try:
        target = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError) as error:
        raise ConfigError(
            f"{group}.{TARGET}={dotted}: cannot be imported: {error} (is its folder on PYTHONPATH?)"
        ) from error
    if not isinstance(target, type):
        raise ConfigError(f"{group}.{TARGET}={dotted}: must be a class, not {type(target).__name__}")
    return target


def _assign(checked: DictConfig, key: str, given: Any, hint: Any, where: str) -> None:
    kinds = typing.get_args(hint) if _is_union(hint) else (hint,)
    sequence = any(typing.get_origin(kind) in (list, tuple) for kind in kinds)
    value = [given] if sequence and not isinstance(given, list | tuple | NoneType) else given
    try:
        if hint is bool and not isinstance(value, bool):
            raise ValidationError("OmegaConf takes any number for true")
        checked[key] = _literal(value)
    except OmegaConfBaseException as error:
        raise ConfigError(f"{where}={shown(given)}: must be {_allowed(hint)}") from error


def shown(value: Any) -> str:
    """`value` as it is typed on the command line."""
    return str(value).lower() if isinstance(value, bool) else "null" if value is None else str(value)


def _literal(value: Any) -> Any:
    """`value` with every `${` escaped: the group is resolved already, what is left of such is plain text."""
    if isinstance(value, list | tuple):
        return [_literal(entry) for entry in value]
    return escape(value) if isinstance(value, str) else value


def _is_union(hint: Any) -> bool:
    return typing.get_origin(hint) in (typing.Union, types.UnionType)


def _frozen(value: Any) -> Any:
    return tuple(_frozen(entry) for entry in value) if isinstance(value, list) else value


def _allowed(hint: Any) -> str:
    if _is_union(hint):
        kinds = [kind for kind in typing.get_args(hint) if kind is not type(None)]
        words = [_allowed(kind) for kind in kinds]
        return " or ".join(words + (["null"] if len(kinds) < len(typing.get_args(hint)) else []))
    if typing.get_origin(hint) in (list, tuple):
        word = _allowed(typing.get_args(hint)[0])
        return f"{word} or a list of such"
    return _WORDS.get(hint, getattr(hint, "__name__", str(hint)))


def part_name(part: Any) -> str:
    """The name for people of a class or an instance: its `name` if it has one, else that of its file."""
    name = getattr(part, "name", None)
    if isinstance(name, str) and name:
        return name
    return (part if isinstance(part, type) else type(part)).__module__.rpartition(".")[2]
