"""Nested configurations of plain values: as YAML that all parsers read alike, and with dotted keys.

Text stays text in YAML, whatever it looks like. Dotted keys: `{"train": {"epochs": 3}}` is
`{"train.epochs": 3}`.
"""

from collections.abc import Iterable, Mapping
from typing import Any

import yaml


class _Dumper(yaml.SafeDumper):
    """PyYAML reads YAML 1.1, other tools 1.2: `1e3` is text for the one and a number for the others."""


def _text(dumper: yaml.SafeDumper, value: str) -> yaml.ScalarNode:
    try:
        float(value.replace("_", ""))
    except ValueError:
        return dumper.represent_scalar("tag:yaml.org,2002:str", value)
    return dumper.represent_scalar("tag:yaml.org,2002:str", value, style="'")


_Dumper.add_representer(str, _text)


def load_yaml(text: str) -> Any:
    """The builtin values of a YAML text, by PyYAML's loader in C where there is one: ten times as fast.

    Raises yaml.YAMLError.
    """
    return yaml.load(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))


def dump_yaml(tree: Mapping[str, Any]) -> str:
    """`tree` (builtin values only) as YAML, keys in their order."""
    return yaml.dump(dict(tree), Dumper=_Dumper, sort_keys=False, allow_unicode=True)


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
    """Whether a dotted key is one of `names` or below one."""
    return any(key == name or key.startswith(f"{name}.") for name in names)
