"""`daso-bench status` and `cancel`: finds the runs below a folder, shows their status, ends them.

Loads no torch: that takes seconds.
"""

import os
import signal
import socket
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from ...strategies.errors import ConfigError
from ..launch.slurm import slurm_status
from ..machine.folders import check_folder
from ..records import display
from ..records.run_directory import OK, RunDirectory


def runs_below(folder: Path) -> list[RunDirectory]:
    """The run at `folder`, or all runs of that study or results folder. Raises ConfigError if none."""
    check_folder(folder)
    if (folder / "status.json").is_file() or (folder / "config.yaml").is_file():
        return [RunDirectory.open(folder)]
    levels = ("*/status.json", "*/*/status.json")  # of a study, of a results folder
    paths = sorted(file.parent for level in levels for file in folder.glob(level))
    if not paths:
        raise ConfigError(f"{folder}: no run in it, nor in a folder one or two levels below")
    return [RunDirectory(path) for path in paths]


def states(folder: Path) -> list[tuple[str, Mapping[str, Any]]]:
    """(name, status) of each run below `folder`; a damaged status.json hides no other run."""
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


def cancel(folder: Path) -> int:
    """Have the run at `folder`, or all below it, end for good; returns the exit code.

    Raises ConfigError for a run on another machine that no batch system knows.
    """
    console = display.make_console()
    for run in runs_below(folder):
        display.say(console, f"{run.run_id}: {_cancel(run)}")
    return OK


def _cancel(run: RunDirectory) -> str:
    status = run.status()
    if slurm_status.job_id(status) is not None or status["status"] != "running":
        return slurm_status.cancel(run)
    attempt = status["attempts"][-1]
    if attempt["host"] != socket.gethostname():
        raise ConfigError(f"run {run.run_id} runs on {attempt['host']}: cancel it there")
    run.cancel_file.touch()
    with suppress(ProcessLookupError):
        os.kill(attempt["pid"], signal.SIGINT)
    return f"its supervisor (pid {attempt['pid']}) is asked to stop"
