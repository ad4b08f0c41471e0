"""The files of a run directory, read without trusting them: damage is noted in words, the rest is used."""

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from ...records.json_lines import Row, read_json, read_records

LINKS = ("intra", "inter")


def environment_of(path: Path, place: str, damage: list[str]) -> dict[str, Any]:
    """environment.json, environment_2.json, … of all attempts as one mapping (`merged`)."""
    later = {
        int(number): file
        for file in path.glob("environment_*.json")
        if (number := file.stem[12:]).isdecimal()
    }
    files = [path / "environment.json", *(file for _, file in sorted(later.items()))]
    attempts = [facts for file in files if (facts := mapping_of(file, place, read_json, damage))]
    return merged(attempts) if attempts else {}


def rows_of(path: Path, name: str, damage: list[str]) -> list[Row]:
    """The whole records of a JSON Lines file, [] without one; `damage` gets a sentence about file `name`."""
    try:
        read = read_records(path)
    except FileNotFoundError:
        return []
    except OSError as error:
        damage.append(f"{name}: {error.strerror}")
        return []
    damage += [f"{name}, {sentence}" for sentence in read.damage]
    return read.rows


def mapping_of(path: Path, place: str, read: Callable[[Path], Any], damage: list[str]) -> dict[str, Any]:
    """The mapping that `read` finds in a file; else {}, and `damage` gets a sentence."""
    try:
        value = read(path)
    except FileNotFoundError:
        damage.append(f"{place}/{path.name}: missing")
    except OSError as error:
        damage.append(f"{place}/{path.name}: {error.strerror}")
    except (ValueError, yaml.YAMLError):
        damage.append(f"{place}/{path.name}: cannot be read, it is damaged")
    else:
        if isinstance(value, dict):
            return value
        damage.append(f"{place}/{path.name}: not a mapping")
    return {}


def read_yaml(path: Path) -> Any:
    """The value in a YAML file. Raises OSError, ValueError or yaml.YAMLError."""
    # The same loader in C where PyYAML has it: ten times as fast.
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    return yaml.load(path.read_text(encoding="utf-8"), Loader=loader)


def merged(values: Sequence[Any]) -> Any:
    """What all attempts recorded of their machine, as one value; `values` has one for each attempt.

    Equal values stay as they are. Mappings are merged by key, lists of equal length item by item. Of other
    values each is named once: "1a2b, then 3c4d". What an attempt lacks is "nothing".
    """
    if all(value == values[0] for value in values):
        return values[0]
    if all(isinstance(value, Mapping) for value in values):
        keys = dict.fromkeys(key for value in values for key in value)
        return {key: merged([value.get(key) for value in values]) for key in keys}
    lists = [value for value in values if isinstance(value, list)]
    rows = len(lists) == len(values) and len({len(value) for value in lists}) == 1
    if rows and all(isinstance(item, Mapping) for value in lists for item in value):
        return [merged(items) for items in zip(*lists, strict=True)]
    return ", then ".join(dict.fromkeys("nothing" if value is None else text(value) for value in values))


def text(value: Any) -> str:
    """A value as it is typed on the command line."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
