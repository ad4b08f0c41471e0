"""The plan of a study: which runs were declared, and when; written before the first of them starts.

`<results_dir>/<study>/plan.jsonl`, one line for each stage. A later sweep adds a stage with the runs that no
earlier one had: more runs are a new stage, never a quiet change of the plan. Fields: docs/records.md.
"""

import errno
from collections import defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from ...strategies.errors import MachineError
from ..config.schema import RunConfig, run_id
from ..records.declared_runs import FILE, declared
from ..records.json_lines import RecordWriter, Row

PLAN_SCHEMA_VERSION = 1


def declare(
    configs: Sequence[RunConfig], words: Sequence[str], *, unix: float, commit: Callable[[], str | None]
) -> None:
    """Add a stage to the plan of each study of `configs` for the runs that are new to it.

    `words`: what was asked for. `unix`: now. `commit`: the present one, asked only if there is a new run.
    Raises MachineError if a plan cannot be written.
    """
    of_folder: dict[Path, list[RunConfig]] = defaultdict(list)
    for config in configs:
        of_folder[config.results_dir / config.study.name].append(config)
    for folder, members in of_folder.items():
        known = declared(folder)
        new = [config for config in members if run_id(config) not in known]
        if not new:
            continue
        try:
            folder.mkdir(parents=True, exist_ok=True)
            with RecordWriter(folder / FILE) as file:
                file.write(_stage(new, words, unix, commit()))
        except OSError as error:
            full = error.errno in (errno.ENOSPC, errno.EDQUOT)
            way_out = "free some space" if full else "check results_dir"
            raise MachineError(f"{folder / FILE}: {error.strerror}; {way_out}") from error


def _stage(configs: Sequence[RunConfig], words: Sequence[str], unix: float, commit: str | None) -> Row:
    def all_of(values: Sequence[Any]) -> list[Any]:
        return list(dict.fromkeys(values))

    study = configs[0].study
    return {
        "kind": "stage",
        "schema_version": PLAN_SCHEMA_VERSION,
        "unix": unix,
        "commit": commit,
        "words": list(words),
        "baseline": study.baseline,
        "interval": study.interval,
        "level": study.level,
        "arms": all_of([config.study.arm for config in configs if config.study.arm]),
        "sizes": all_of([config.study.size for config in configs if config.study.size]),
        "seeds": all_of([config.seed for config in configs]),
        "targets": all_of([config.train.target for config in configs]),
        "runs": [run_id(config) for config in configs],
    }
