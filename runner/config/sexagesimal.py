"""An unquoted `30:00` in a YAML file is the number 1800: said before anything is composed.

PyYAML reads YAML 1.1, whose integers and floats may be written to the base 60, and Hydra's loader keeps that:
`timeout_min: 30:00` arrives as 1800 and cannot be told from 1800 any more. So the files themselves are read.
"""

from collections.abc import Iterator
from pathlib import Path

import yaml

from ...strategies.errors import ConfigError

_NUMBERS = ("tag:yaml.org,2002:int", "tag:yaml.org,2002:float")


def refuse(folder: Path) -> None:
    """Raises ConfigError for the first number to the base 60 in the *.yaml files below `folder`.

    A file that is no YAML is left to the one who loads it.
    """
    for path in sorted(Path(folder).rglob("*.yaml")):
        try:
            trees = list(yaml.compose_all(path.read_text(encoding="utf-8"), Loader=yaml.SafeLoader))
        except (OSError, UnicodeDecodeError, yaml.YAMLError):
            continue
        for tree in trees:
            for key, node in _scalars(tree, "", set()):
                if node.tag in _NUMBERS and ":" in node.value:
                    number = yaml.SafeLoader("").construct_object(node)
                    raise ConfigError(
                        f"{path}, line {node.start_mark.line + 1}: {key}: {node.value} without quotes is the "
                        f'number {number} (YAML counts it to the base 60); write {key}: "{node.value}"'
                    )


def _scalars(node: yaml.Node | None, key: str, seen: set[int]) -> Iterator[tuple[str, yaml.ScalarNode]]:
    """Every scalar below `node` with its dotted key; an anchor may make a circle."""
    if isinstance(node, yaml.ScalarNode):
        yield key, node
    if node is None or id(node) in seen:
        return
    seen.add(id(node))
    if isinstance(node, yaml.MappingNode):
        for name, value in node.value:
            text = name.value if isinstance(name, yaml.ScalarNode) else "?"
            yield from _scalars(value, f"{key}.{text}" if key else text, seen)
    if isinstance(node, yaml.SequenceNode):
        for index, value in enumerate(node.value):
            yield from _scalars(value, f"{key}[{index}]", seen)
