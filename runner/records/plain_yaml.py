"""YAML that every reader understands alike: text stays text, whatever it looks like."""

from collections.abc import Mapping
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


def load(text: str) -> Any:
    """What `text` says, builtin values only; by PyYAML's loader in C where it has one: ten times as fast.

    Raises yaml.YAMLError.
    """
    return yaml.load(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))


def dump(tree: Mapping[str, Any]) -> str:
    """`tree` (builtin values only) as YAML, keys in their order."""
    return yaml.dump(dict(tree), Dumper=_Dumper, sort_keys=False, allow_unicode=True)
