"""Shared by the tests of the report: the comparisons of a folder, the tables of a section, a CSV file."""

import csv
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import TypeVar

import yaml

from daso_bench.runner.config.groups import CONF
from daso_bench.runner.report.data.arms import Comparison, compare
from daso_bench.runner.report.data.load import load_runs
from daso_bench.runner.report.results import Results
from daso_bench.runner.report.section import Rows, Section

Make = Callable[..., Path]
T = TypeVar("T")


def there(value: T | None) -> T:
    """The value, which must be there."""
    assert value is not None
    return value


@cache
def target_of(name: str, group: str = "strategy") -> str:
    """The `_target_` of an entry of the shipped configuration."""
    return str(yaml.safe_load((CONF / group / f"{name}.yaml").read_text(encoding="utf-8"))["_target_"])


def all_compared(root: Path) -> list[Comparison]:
    return compare(load_runs(root, "test"))


def compared(root: Path) -> Comparison:
    """The one comparison below `root`."""
    (comparison,) = all_compared(root)
    return comparison


def tables_of(kind: type[Section], comparisons: Sequence[Comparison]) -> dict[str, Rows]:
    """The tables of a section that needs no ratios and no verdicts."""
    runs = [run for comparison in comparisons for run in comparison.runs]
    return kind(Results(runs=runs, comparisons=list(comparisons), speedups=[], judged=[])).tables()


def table(path: Path) -> list[dict[str, str]]:
    """The rows of a CSV file."""
    with open(path, newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))
