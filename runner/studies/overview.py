"""Which runs stand below a folder, and how each is: its status.json, and what Slurm adds."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ...strategies.errors import ConfigError
from ..launch.slurm import slurm_status
from ..machine.user_paths import check_folder
from ..records.run_directory import RunDirectory

_LEVELS = ("*/status.json", "*/*/status.json")  # of a study, of a results folder


def runs_below(folder: Path) -> list[RunDirectory]:
    """The run at `folder`, or all runs of that study or results folder. Raises ConfigError if none."""
    check_folder(folder)
    if (folder / "status.json").is_file() or (folder / "config.yaml").is_file():
        return [RunDirectory.open(folder)]
    found = sorted(file.parent for level in _LEVELS for file in folder.glob(level))
    if not found:
        raise ConfigError(f"{folder}: no run in it, nor in a folder one or two levels below")
    return [RunDirectory(path) for path in found]


def states(folder: Path) -> list[tuple[str, Mapping[str, Any]]]:
    """(name, status) of each run below `folder`; a damaged status.json says so and hides nobody."""
    named: list[tuple[RunDirectory, Mapping[str, Any]]] = []
    rows: list[tuple[str, Mapping[str, Any]]] = []
    for run in runs_below(folder):
        try:
            status: Mapping[str, Any] = run.status()
        except ConfigError as error:
            status = {"status": "damaged", "reason": str(error)}
        named.append((run, status))
    jobs = slurm_status.jobs_of(status for _, status in named)
    for run, status in named:
        status = slurm_status.with_queue(status, jobs.get(slurm_status.job_id(status) or ""))
        name = run.run_id if run.path == folder.absolute() else str(run.path.relative_to(folder.absolute()))
        rows.append((name, status))
    return rows
