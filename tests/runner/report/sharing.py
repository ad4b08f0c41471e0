"""Shared by the tests of the report: the comparisons of a folder, the tables of a section, a CSV file."""

import csv
from collections.abc import Sequence
from pathlib import Path

from daso_bench.runner.report.data.arms import Comparison, compare
from daso_bench.runner.report.data.load import load_runs
from daso_bench.runner.report.section import Results, Rows, Section


def compared(root: Path) -> Comparison:
    """The one comparison below `root`."""
    (comparison,) = compare(load_runs(root, "test"))
    return comparison


def tables_of(kind: type[Section], comparisons: Sequence[Comparison]) -> dict[str, Rows]:
    """The tables of a section that needs no ratios and no verdicts."""
    runs = [run for comparison in comparisons for run in comparison.runs]
    return kind(Results(runs=runs, comparisons=list(comparisons), speedups=[], judged=[])).tables()


def table(path: Path) -> list[dict[str, str]]:
    """The rows of a CSV file."""
    with open(path, newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))
