"""Nested keys and dotted ones: `{"train": {"epochs": 3}}` and `{"train.epochs": 3}`."""

from collections.abc import Iterable, Mapping
from typing import Any


def flatten(tree: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested keys as dotted ones; lists, and mappings without keys, are values."""
    flat: dict[str, Any] = {}
    for key, value in tree.items():
        inner = isinstance(value, Mapping) and value
        flat |= flatten(value, f"{prefix}{key}.") if inner else {f"{prefix}{key}": value}
    return flat


def nested(values: Mapping[str, Any]) -> dict[str, Any]:
    """Dotted keys as nested ones: `nested(flatten(tree)) == tree` where no key has a dot of its own."""
    tree: dict[str, Any] = {}
    for key, value in values.items():
        *above, last = key.split(".")
        place = tree
        for name in above:
            place = place.setdefault(name, {})
        place[last] = value
    return tree


def below(key: str, names: Iterable[str]) -> bool:
    """Whether a dotted key is one of `names` or lies below one."""
    return any(key == name or key.startswith(f"{name}.") for name in names)
