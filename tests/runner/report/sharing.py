"""Shared by the tests of the report: the comparisons of a folder, the tables of a section, a CSV file."""

import csv
import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

import yaml

from daso_bench.runner.config.groups import CONF
from daso_bench.runner.records.trees import id_of_tree, load_yaml
from daso_bench.runner.report.data.arms import Comparison, compare
from daso_bench.runner.report.data.load import load_runs
from daso_bench.runner.report.results import Results
from daso_bench.runner.report.section import Rows, Section

Make = Callable[..., Path]
T = TypeVar("T")
S = TypeVar("S", bound=Section)


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


def section_of(kind: type[S], comparisons: Sequence[Comparison]) -> S:
    """A section that needs no ratios and no verdicts."""
    runs = [run for comparison in comparisons for run in comparison.runs]
    return kind(Results(runs=runs, comparisons=list(comparisons), speedups=[], judged=[]))


def tables_of(kind: type[Section], comparisons: Sequence[Comparison]) -> dict[str, Rows]:
    return section_of(kind, comparisons).tables()


def write_config(path: Path, config: dict[str, Any]) -> None:
    """Write config.yaml of a run, by PyYAML's dumper in C where there is one."""
    dumper = getattr(yaml, "CSafeDumper", yaml.SafeDumper)
    text = yaml.dump(config, Dumper=dumper, sort_keys=False, allow_unicode=True)
    (path / "config.yaml").write_text(text)


@contextmanager
def edited(path: Path) -> Iterator[dict[str, Any]]:
    """config.yaml of a run, written again with what the body changes."""
    config = load_yaml((path / "config.yaml").read_text())
    yield config
    write_config(path, config)


def agree(path: Path) -> Path:
    """Make the records of a run agree again, and with its plan, after a test changed some; its new folder.

    Its ranks are those of environment.json, and each has the intervals of the first.
    """
    with edited(path) as config:
        name = config["run"]["id"] = id_of_tree(config, path.name.split("-")[:3])
    status = json.loads((path / "status.json").read_text())
    summary = json.loads((path / "metrics.jsonl").read_text().splitlines()[-1])
    if summary["kind"] == "summary":
        status["summary"] = {key: value for key, value in summary.items() if key != "kind"}
    (path / "status.json").write_text(json.dumps(status | {"run_id": name}))
    intervals = (path / "ranks" / "0.jsonl").read_text()
    for file in (path / "ranks").iterdir():
        file.unlink()
    for rank in range(len(json.loads((path / "environment.json").read_text())["ranks"])):
        (path / "ranks" / f"{rank}.jsonl").write_text(intervals)
    plan = path.parent / "plan.jsonl"
    plan.write_text(plan.read_text().replace(path.name, name))
    return path.rename(path.parent / name)


def table(path: Path) -> list[dict[str, str]]:
    """The rows of a CSV file."""
    with open(path, newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))
