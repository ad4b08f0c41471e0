"""`plan.jsonl` in the folder of a study: which runs were declared, when, and with which baseline and targets.

One row for each stage, written by the front end before its first run starts. Fields: docs/records.md.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .json_lines import read_records
from .target_crossing import is_number

FILE = "plan.jsonl"
PLAN_SCHEMA_VERSION = 1


@dataclass(frozen=True, kw_only=True)
class Stage:
    """What one command declared. `unix`: s since 1970; `runs`: their ids; `targets`: None for no target."""

    unix: float
    baseline: str
    level: float | None
    targets: tuple[float | None, ...]
    runs: tuple[str, ...]


def stages_of(folder: Path) -> list[Stage]:
    """The stages in their order; [] without a plan, nothing from broken lines."""
    try:
        rows = read_records(folder / FILE).rows
    except OSError:
        return []
    return [stage for row in rows if (stage := _stage(row))]


def _stage(row: Mapping[str, Any]) -> Stage | None:
    """None for a row without a time."""
    unix, level = row.get("unix"), row.get("level")
    targets, runs = (
        value if isinstance(value := row.get(name), list) else [] for name in ("targets", "runs")
    )
    if unix is None or not is_number(unix):
        return None
    return Stage(
        unix=unix,
        baseline=str(row.get("baseline") or ""),
        level=level if is_number(level) else None,
        targets=tuple(value for value in targets if value is None or is_number(value)),
        runs=tuple(run for run in runs if isinstance(run, str)),
    )
