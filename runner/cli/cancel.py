"""`daso-bench cancel`: ends runs for good, wherever they wait or run. Loads no torch: that takes seconds."""

import os
import signal
import socket
from contextlib import suppress
from pathlib import Path

from ...strategies.errors import ConfigError
from ..launch.slurm import slurm_status
from ..records import display
from ..records.run_directory import RunDirectory
from ..studies.overview import runs_below


def cancel(folder: Path) -> int:
    """Have the run at `folder`, or all below it, end for good; returns the exit code.

    Raises ConfigError for a run on another machine that no batch system knows.
    """
    console = display.make_console()
    for run in runs_below(folder):
        display.say(console, f"{run.run_id}: {_cancel(run)}")
    return 0


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
