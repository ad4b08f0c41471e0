"""The files of a run directory, read without trusting them: damage is told in words and the rest is used."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import yaml

from ...records.json_lines import Row, read_json, read_records
from .attempts import merged


def environment_of(path: Path, place: str, damage: list[str]) -> dict[str, Any]:
    """Of all attempts: environment.json, environment_2.json, … in their order."""
    later = {
        int(number): file
        for file in path.glob("environment_*.json")
        if (number := file.stem[12:]).isdecimal()
    }
    files = [path / "environment.json", *(file for _, file in sorted(later.items()))]
    found = [one for file in files if (one := mapping_of(file, place, read_json, damage))]
    return merged(found) if found else {}


def rows_of(path: Path, name: str, damage: list[str]) -> list[Row]:
    """The whole records of a JSON Lines file, [] without one; `name` stands in what `damage` tells."""
    try:
        read = read_records(path)
    except FileNotFoundError:
        return []
    except OSError as error:
        damage.append(f"{name}: {error.strerror}")
        return []
    damage += [item.sentence(name) for item in read.damage]
    return read.rows


def mapping_of(path: Path, place: str, read: Callable[[Path], Any], damage: list[str]) -> dict[str, Any]:
    """The mapping that `read` finds in a file; {} where there is none, which `damage` then tells."""
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
