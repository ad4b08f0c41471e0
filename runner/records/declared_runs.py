"""When the runs of a study were declared: `plan.jsonl` in its folder, read without trusting it.

A line is a stage: `unix`, when it was declared, and `runs`, the ids of the runs that it declares.
"""

import math
from pathlib import Path

from .json_lines import read_records

FILE = "plan.jsonl"


def declared(folder: Path) -> dict[str, float]:
    """Run id -> when it was declared first, s since 1970; {} without a plan, nothing from broken lines."""
    try:
        rows = read_records(folder / FILE).rows
    except OSError:
        return {}
    found: dict[str, float] = {}
    for row in rows:
        unix, runs = row.get("unix"), row.get("runs")
        if isinstance(unix, bool) or not isinstance(unix, int | float) or not math.isfinite(unix):
            continue
        for run_id in runs if isinstance(runs, list) else []:
            if isinstance(run_id, str):
                found[run_id] = min(unix, found.get(run_id, unix))
    return found
