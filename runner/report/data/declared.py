"""Class attributes read from source code: what a strategy may change, tasks of data sets, names.

Reports need no torch, so they import no strategy, model or data set.
"""

import ast
import importlib.util
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from ... import PACKAGE as _ROOT
from ...records.trees import below, load_yaml

PACKAGE = "daso_bench"
DEFAULT = ("strategy",)
MAY_DIFFER: Mapping[str, str] = {
    "strategy": "the keys of the strategy are what is compared",
    "data.order": "ranks that draw samples by themselves share no order (lasgd)",
    "data.samples": "ranks that draw samples by themselves end at a step of their own (lasgd)",
    "data.local_batch": "shares of a batch may follow the speeds of the devices (heterogeneous)",
    "evaluation.mode": "a strategy that rarely or never synchronises is judged from copies",
    "evaluation.count": "a strategy that rarely or never synchronises is judged at its own sync points",
}
"""Everything that a strategy may declare in `may_differ`, with the reason. The project owns this list: a
strategy of one's own that declares more gets no verdict."""
CLASSIFICATION = "classification"


def may_differ(target: str) -> tuple[str, ...]:
    """`may_differ` of the class that `target` (a `_target_`, dotted) names, inherited or its own.

    The default of all strategies where its source, or a plain tuple of texts in it, cannot be found: a
    strategy without readable source is allowed nothing beyond its own keys.
    """
    keys = _declared(target, "may_differ")
    plain = isinstance(keys, tuple | list) and all(isinstance(key, str) for key in keys)
    return tuple(keys) if plain else DEFAULT


def too_much(target: str) -> tuple[str, ...]:
    """What the class that `target` names declares in `may_differ` beyond `MAY_DIFFER`."""
    return tuple(key for key in may_differ(target) if not below(key, MAY_DIFFER))


def is_shipped(target: str, name: str) -> bool:
    """Whether `target` lies in the module of the built-in strategy `name`; True if none has that name."""
    module = _module_of(name)
    return not module or target.rpartition(".")[0] == module


@cache
def _module_of(name: str) -> str:
    """Module of the built-in strategy that is typed `strategy=name`; "" if there is none."""
    file = _ROOT / "conf" / "strategy" / f"{name}.yaml"
    if not name or not file.is_file():
        return ""
    return str(load_yaml(file.read_text(encoding="utf-8"))["_target_"]).rpartition(".")[0]


def task_of(target: str) -> str:
    """`task` of the data set that `target` names; classification where it has none or is not found."""
    task = _declared(target, "task")
    return task if isinstance(task, str) else CLASSIFICATION


def name_of(target: str) -> str | None:
    """`name` of the class that `target` names; None where it has none or is not found."""
    name = _declared(target, "name")
    return name if isinstance(name, str) and name else None


def label_of(target: str) -> str | None:
    """What a run id calls the class of `target`: its `name`, else its module; None without its source."""
    module = target.rpartition(".")[0]
    file = _file(module)
    if file is None or _parsed(file) is None:
        return None
    return name_of(target) or module.rpartition(".")[2]


def _declared(target: str, attribute: str, seen: frozenset[str] = frozenset()) -> Any:
    """The literal that the class, or one it inherits from, gives the attribute; None without one."""
    module, _, name = target.rpartition(".")
    file = _file(module)
    tree = _parsed(file) if file else None
    if tree is None or target in seen:
        return None
    classes = {node.name: node for node in tree.body if isinstance(node, ast.ClassDef)}
    if name in classes:
        stated = _stated(classes[name], attribute)
        if stated is not None:
            return stated
        bases = [base.id for base in classes[name].bases if isinstance(base, ast.Name)]
        places = [f"{module}.{base}" for base in bases]
    else:
        places = [
            f"{_imported_from(node, module)}.{alias.name}"
            for node in tree.body
            if isinstance(node, ast.ImportFrom)
            for alias in node.names
            if (alias.asname or alias.name) == name
        ]
    inherited = (_declared(place, attribute, seen | {target}) for place in places)
    return next((value for value in inherited if value is not None), None)


def _stated(node: ast.ClassDef, attribute: str) -> Any:
    for line in node.body:
        match line:
            case (
                ast.Assign(targets=[ast.Name(id=name)], value=ast.expr() as value)
                | ast.AnnAssign(target=ast.Name(id=name), value=ast.expr() as value)
            ) if name == attribute:
                try:
                    return ast.literal_eval(value)
                except ValueError:
                    return None
    return None


def _imported_from(node: ast.ImportFrom, module: str) -> str:
    if not node.level:
        return node.module or ""
    package = module.split(".")[: -node.level]
    return ".".join([*package, *([node.module] if node.module else [])])


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
