"""Runs that are given to another program (Slurm's queue, the user's torchrun) instead of being run now."""

import shlex
from collections.abc import Callable, Iterable
from functools import cache

from rich.console import Console

from ...strategies.errors import ConfigError, MachineError
from ..config.launchers import SlurmConfig, TorchrunConfig
from ..config.schema import RunConfig
from ..records import display
from ..records.run_directory import RunDirectory
from .external_launcher import Handler, Runs
from .outcome import Outcome
from .supervisor import Event


def elsewhere(configs: Iterable[RunConfig | None]) -> Handler | None:
    """Who takes these runs; None if they are run by this process. Raises ConfigError for a mixture."""
    found = {_handler(config) for config in configs if config is not None}
    if len(found) > 1:
        raise ConfigError("launcher: a sweep goes to one launcher alone; start one sweep for each")
    return next(iter(found), None)


def check(config: RunConfig) -> None:
    """Refuse what the other program cannot start. Raises ConfigError."""
    nodes = config.cluster.ranks_of_nodes
    if isinstance(config.launcher, TorchrunConfig) and len(set(nodes)) > 1:
        raise ConfigError(f"cluster.ranks_per_node={list(nodes)}: torchrun starts as many on every node")


def describe(config: RunConfig) -> list[str]:
    """What the run asks of the other program, for `--dry-run`."""
    if not isinstance(config.launcher, SlurmConfig):
        return []
    from .slurm.request import request_of

    try:
        return request_of(config).describe()
    except MachineError as error:  # a laptop may look at what a cluster would be asked
        return [f"what it asks of Slurm is not known here: {str(error).splitlines()[0]}"]


def launch_here(
    directory: RunDirectory, config: RunConfig, on_event: Callable[[Event], None] | None
) -> Outcome:
    """Run it in the allocation around this process. Raises ConfigError if there is none."""
    from .slurm.job import Allocation, run_here

    return run_here(directory, config, Allocation.around(), on_event)


@cache
def _queue() -> Handler:
    from .slurm.wait import Queue

    return Queue()


def _handler(config: RunConfig) -> Handler | None:
    launcher = config.launcher
    if isinstance(launcher, SlurmConfig) and launcher.submit:
        return _queue()
    return _TORCHRUN if isinstance(launcher, TorchrunConfig) else None


class _Torchrun(Handler):
    def give(self, runs: Runs, console: Console) -> int:
        for run, config in runs:
            check(config)
            run.cancel_file.unlink(missing_ok=True)
            nodes = config.cluster.ranks_of_nodes
            where = (
                "--standalone"
                if len(nodes) == 1
                else f"--nnodes={len(nodes)} --rdzv-backend=c10d --rdzv-endpoint=FIRST_HOST:29400"
            )
            display.say(console, f"run directory: {run.path}")
            display.say(console, f"start on {'this machine' if len(nodes) == 1 else 'every node'}:")
            command = f"torchrun {where} --nproc-per-node={nodes[0]} -m daso_bench.runner.launch.worker"
            display.say(console, f"  {command} {shlex.quote(str(run.path))}")
        return 0


_TORCHRUN = _Torchrun()
