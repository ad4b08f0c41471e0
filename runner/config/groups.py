"""The choices of each group, read from the YAML files alone, without torch and Hydra."""

import shutil
import textwrap
from collections.abc import Sequence
from functools import cache
from pathlib import Path

import yaml

from ...strategies.errors import ConfigError, unknown
from .. import PACKAGE

CONF = PACKAGE / "conf"
RUN_GROUPS = ("strategy", "model", "dataset", "reader", "optimizer", "schedule", "cluster", "launcher")
GROUPS = (*RUN_GROUPS, "study")
MANY = 20  # a group with more entries is summed up where all groups are listed


def plural(group: str) -> str:
    """How a group is called in `daso-bench list`: strategies, models, ..."""
    return {"strategy": "strategies", "study": "studies"}.get(group, f"{group}s")


def entries(group: str, folders: Sequence[Path] = ()) -> dict[str, str]:
    """The choices of `group`, sorted: the name to type -> the first comment line of its file.

    `folders` (of --config-dir) come before the built-in ones.
    """
    described: dict[str, str] = {}
    for folder in (*folders, CONF):
        for file in sorted((folder / group).glob("*.yaml")):
            described.setdefault(file.stem, describe(file))
    return dict(sorted(described.items()))


def describe(file: Path) -> str:
    """The first comment line of a YAML file that is not a directive ("@package"), or ""."""
    for line in file.read_text(encoding="utf-8").splitlines():
        if not line.startswith("#"):
            return ""
        text = line.lstrip("# ").strip()
        if text and not text.startswith("@"):
            return text
    return ""


def keys(group: str, choice: str, folders: Sequence[Path] = ()) -> list[str]:
    """The keys that `group=choice` has, or [] where there is no such file."""
    for folder in (*folders, CONF):
        file = folder / group / f"{choice}.yaml"
        if file.is_file():
            tree = yaml.safe_load(file.read_text(encoding="utf-8"))
            names = tree if isinstance(tree, dict) else {}
            return [key for key in names if not key.startswith("_") and key != "defaults"]
    return []


@cache
def shipped(group: str) -> dict[str, str]:
    """The shipped choices of a group: the class of each, and the first name by which it is chosen."""
    files = sorted((CONF / group).glob("*.yaml"), reverse=True)
    return {
        str(yaml.safe_load(file.read_text(encoding="utf-8")).get("_target_")): file.stem for file in files
    }


def primary() -> dict[str, object]:
    """conf/config.yaml as it stands."""
    return yaml.safe_load((CONF / "config.yaml").read_text(encoding="utf-8"))


def default_choices() -> dict[str, str]:
    """The choice that a bare run makes in each group."""
    defaults = primary()["defaults"]
    assert isinstance(defaults, list)
    pairs = [item for entry in defaults if isinstance(entry, dict) for item in entry.items()]
    return {group: choice for group, choice in pairs if group in GROUPS}


def listing(what: str | None, folders: Sequence[Path] = ()) -> str:
    """The text of `daso-bench list [WHAT]`; WHAT is a group in the singular or plural."""
    if what is None:
        return "\n\n".join(_group(group, folders, brief=True) for group in GROUPS)
    names = {plural(group): group for group in GROUPS} | {group: group for group in GROUPS}
    if what not in names:
        error = unknown("list", what, [plural(group) for group in GROUPS])
        raise ConfigError(str(error).replace("=", " ", 1))
    return _group(names[what], folders, brief=False)


def _group(group: str, folders: Sequence[Path], *, brief: bool) -> str:
    choices = entries(group, folders)
    default = default_choices().get(group)
    sign = "+study=NAME" if group == "study" else f"{group}=NAME"
    title = f"{plural(group)} ({sign}):"
    width = max(60, shutil.get_terminal_size().columns)
    if brief and len(choices) > MANY:
        return "\n  ".join([title, *textwrap.wrap(", ".join(choices), width - 2)])
    column = max(map(len, choices), default=0)
    lines = [
        f"{name:<{column}}  {description}{' (default)' if name == default else ''}".rstrip()
        for name, description in choices.items()
    ]
    return "\n  ".join([title, *(lines or ["none"])])
