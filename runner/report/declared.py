"""What a strategy's class declares that it may change, read from its source: reports do without torch."""

import ast
import importlib.util
from collections.abc import Iterator
from functools import cache
from pathlib import Path

PACKAGE = "daso_bench"
DEFAULT = ("strategy",)
_ROOT = Path(__file__).resolve().parents[2]


def may_differ(target: str) -> tuple[str, ...]:
    """`may_differ` of the class that `target` (a `_target_`, dotted) names, inherited or its own.

    The default of all strategies where its source, or a plain tuple of texts in it, cannot be found: a
    strategy that nobody can read is allowed nothing beyond its own keys.
    """
    module, _, name = target.rpartition(".")
    found = _of_class(module, name, set())
    return DEFAULT if found is None else found


def _of_class(module: str, name: str, seen: set[tuple[str, str]]) -> tuple[str, ...] | None:
    if (module, name) in seen:
        return None
    seen.add((module, name))
    tree = _tree(module)
    if tree is None:
        return None
    for node in tree.body:
        if isinstance(node, ast.ClassDef) and node.name == name:
            stated = _stated(node)
            if stated is not None:
                return stated
            bases = (base.id for base in node.bases if isinstance(base, ast.Name))
            inherited = (_of_class(*place, seen) for base in bases for place in _places(tree, module, base))
            return next((entry for entry in inherited if entry is not None), None)
    # Not defined here: perhaps taken in from elsewhere, under this name.
    places = (place for place in _places(tree, module, name) if place[0] != module)
    return next((entry for place in places if (entry := _of_class(*place, seen)) is not None), None)


def _stated(node: ast.ClassDef) -> tuple[str, ...] | None:
    for line in node.body:
        targets = line.targets if isinstance(line, ast.Assign) else []
        targets = [line.target] if isinstance(line, ast.AnnAssign) else targets
        if not any(isinstance(target, ast.Name) and target.id == "may_differ" for target in targets):
            continue
        assert isinstance(line, ast.Assign | ast.AnnAssign)
        try:
            value = ast.literal_eval(line.value) if line.value is not None else None
        except ValueError:
            return None
        if isinstance(value, tuple | list) and all(isinstance(entry, str) for entry in value):
            return tuple(value)
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
