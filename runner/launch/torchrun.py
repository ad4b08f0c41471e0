"""`launcher=torchrun`: prints the line to start on every node, and has rank 0 supervise the run.

The user, or any batch system, starts the processes with torchrun or plain srun (`worker`). The process of
rank 0 is the supervisor: rank 0 itself is its child, all other ranks are processes of torchrun or srun.
"""

import shlex
import subprocess
import sys
from pathlib import Path

from rich.console import Console

from ...strategies.errors import ConfigError, MachineError
from ..config.launchers import ExternalConfig
from ..config.load import load
from ..config.run_config import RunConfig
from ..records import display
from ..records.run_directory import RunDirectory
from .launcher import Launcher, Runs, refuse_uneven_nodes
from .remote import WORKER, RemoteRanks
from .supervisor import run_attempt


class TorchrunLauncher(Launcher):
    """Prints the torchrun command of each run."""

    def refuse(self, config: RunConfig) -> None:
        refuse_uneven_nodes(config)

    def hands_over(self, config: RunConfig) -> bool:
        return True

    def hand_over(self, runs: Runs, console: Console) -> int:
        for run, config in runs:
            self.refuse(config)
            run.cancel_file.unlink(missing_ok=True)
            per_node, *others = config.cluster.ranks_of_nodes
            where, machine = "--standalone", "this machine"
            if others:
                where = f"--nnodes={1 + len(others)} --rdzv-backend=c10d --rdzv-endpoint=FIRST_HOST:29400"
                machine = "every node"
            display.say(console, f"run directory: {run.path}")
            display.say(console, f"start on {machine}:")
            command = f"torchrun {where} --nproc-per-node={per_node} -m {WORKER}"
            display.say(console, f"  {command} {shlex.quote(str(run.path))}")
        return 0


class _RankZero:
    """The `Starter` of a run whose other ranks torchrun or srun has started: starts the process of rank 0."""

    def __init__(self, run_dir: Path, key: str) -> None:
        self._command = [sys.executable, "-u", "-m", WORKER, str(run_dir), "--key", key]
        self._child: subprocess.Popen[bytes] | None = None

    def begin(self) -> None:
        self._child = subprocess.Popen(self._command)

    def ended(self) -> str | None:
        code = self.fate(0)
        return None if code is None else f"rank 0 ended with exit code {code} before all ranks had come"

    def fate(self, rank: int) -> int | None:
        return self._child.poll() if rank == 0 and self._child is not None else None

    def words(self) -> str:
        return ""

    def stop(self) -> None:
        if self._child is None:
            return
        try:
            self._child.wait(5)
        except subprocess.TimeoutExpired:
            self._child.kill()
            self._child.wait()


def supervise(run_dir: Path, key: str) -> int:
    """Supervise the attempt `key` at the run in `run_dir`, and start its rank 0. Returns the exit code."""
    try:
        directory = RunDirectory.open(run_dir)
        if directory.state() == "finished":
            print(f"run {directory.run_id} is finished already: {directory.path}", file=sys.stderr)
            return 0
        config = load(directory.config)
        launcher = config.launcher
        if not isinstance(launcher, ExternalConfig):
            raise ConfigError(
                f"launcher={launcher.name}: {run_dir} is not for processes that torchrun or srun start; "
                "prepare it with launcher=torchrun"
            )
        ranks = RemoteRanks(directory, config, _RankZero(run_dir, key), key=key, grouped=False)
        outcome = run_attempt(directory, ranks, stall_s=launcher.stall_s)
    except (ConfigError, MachineError) as error:
        print(f"daso-bench: {error}", file=sys.stderr)
        return 2 if isinstance(error, ConfigError) else 3
    if outcome.exit_code:
        print(f"daso-bench: {outcome.status}: {outcome.reason}\n{outcome.details}".rstrip(), file=sys.stderr)
    return outcome.exit_code
