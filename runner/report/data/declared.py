"""Class attributes read from source code: what a strategy may change, tasks of data sets, names.

Reports need no torch, so they import no strategy, model or data set.
"""

import ast
import importlib.util
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

from ... import PACKAGE as _ROOT

PACKAGE = "daso_bench"
DEFAULT = ("strategy",)
CLASSIFICATION = "classification"


def may_differ(target: str) -> tuple[str, ...]:
    """`may_differ` of the class that `target` (a `_target_`, dotted) names, inherited or its own.

    The default of all strategies where its source, or a plain tuple of texts in it, cannot be found: a
    strategy without readable source is allowed nothing beyond its own keys.
    """
    keys = _declared(target, "may_differ")
    plain = isinstance(keys, tuple | list) and all(isinstance(key, str) for key in keys)
    return tuple(keys) if plain else DEFAULT


def task_of(target: str) -> str:
    """`task` of the data set that `target` names; classification where it has none or is not found."""
    task = _declared(target, "task")
    return task if isinstance(task, str) else CLASSIFICATION


def name_of(target: str) -> str | None:
    """`name` of the class that `target` names; None where it has none or is not found."""
    name = _declared(target, "name")
    return name if isinstance(name, str) and name else None


def _declared(target: str, attribute: str) -> Any:
    """The literal that the class, or one it is made from, gives the attribute; None without one."""
    module, _, name = target.rpartition(".")
    return _of_class(module, name, attribute, set())


def _of_class(module: str, name: str, attribute: str, seen: set[tuple[str, str]]) -> Any:
    if (module, name) in seen:
        return None
    seen.add((module, name))
    tree = _tree(module)
    if tree is None:
        return None
    for node in tree.body:
        if isinstance(node, ast.ClassDef) and node.name == name:
            stated = _stated(node, attribute)
            if stated is not None:
                return stated
            bases = (base.id for base in node.bases if isinstance(base, ast.Name))
            from_ = (place for base in bases for place in _places(tree, module, base))
            inherited = (_of_class(*place, attribute, seen) for place in from_)
            return next((entry for entry in inherited if entry is not None), None)
    # Not defined here: perhaps taken in from elsewhere, under this name.
    places = (place for place in _places(tree, module, name) if place[0] != module)
    found = (_of_class(*place, attribute, seen) for place in places)
    return next((entry for entry in found if entry is not None), None)


def _stated(node: ast.ClassDef, attribute: str) -> Any:
    for line in node.body:
        targets = line.targets if isinstance(line, ast.Assign) else []
        targets = [line.target] if isinstance(line, ast.AnnAssign) else targets
        if not any(isinstance(target, ast.Name) and target.id == attribute for target in targets):
            continue
        assert isinstance(line, ast.Assign | ast.AnnAssign)
        try:
            return ast.literal_eval(line.value) if line.value is not None else None
        except ValueError:
            return None
    return None


def _places(tree: ast.Module, module: str, name: str) -> Iterator[tuple[str, str]]:
    """Where the class called `name` in `module` may be defined: there, or where it is imported from."""
    yield module, name
    for node in tree.body:
        if isinstance(node, ast.ImportFrom):
            for alias in node.names:
                if (alias.asname or alias.name) == name:
                    yield _absolute(node, module), alias.name


def _absolute(node: ast.ImportFrom, module: str) -> str:
    if not node.level:
        return node.module or ""
    package = module.split(".")[: -node.level]
    return ".".join([*package, *([node.module] if node.module else [])])


def _tree(module: str) -> ast.Module | None:
    file = _file(module)
    return None if file is None else _parsed(file)


@cache  # a report asks once for every pair of arms
def _parsed(file: Path) -> ast.Module | None:
    try:
        return ast.parse(file.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, SyntaxError):
        return None


def _file(module: str) -> Path | None:
    head, _, rest = module.partition(".")
    if head == PACKAGE:
        return _ROOT.joinpath(*rest.split(".")).with_suffix(".py")
    try:
        spec = importlib.util.find_spec(module)  # imports the packages above it, not the module
    except (ImportError, ValueError, AttributeError):
        return None
    return Path(spec.origin) if spec is not None and spec.origin else None
