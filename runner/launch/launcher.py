"""Launchers: the base class of what `launcher=NAME` does with a run, and the cores that a run needs."""

from __future__ import annotations

import pkgutil
from collections.abc import Callable, Iterable, Sequence
from functools import cache
from typing import TYPE_CHECKING

from rich.console import Console

from ...strategies.errors import ConfigError
from ..config.launchers import LauncherConfig
from ..machine.cores import threads_per_rank
from ..records.run_directory import Outcome, RunDirectory
from .supervisor import Event

if TYPE_CHECKING:
    from ..config.run_config import RunConfig  # loads torch, which no supervisor needs

Runs = Sequence[tuple[RunDirectory, "RunConfig"]]


class Launcher:
    """Starts the ranks of a run and watches them to their end. There is one object for each kind of launcher.

    A new launcher `NAME` is three files, in this tree or in a folder that `--config-dir` and PYTHONPATH name:

    1. A module with two classes. A frozen dataclass derived from `LauncherConfig` (or from `LocalConfig`,
       `ExternalConfig`) has the keys; its `run_by` is the dotted path of the second class. That one derives
       from `Launcher` (or from `LocalLauncher`) and defines `run` or `hand_over`. Where a program starts the
       ranks, `remote.RemoteRanks` with a `Starter` and `supervisor.run_attempt` do the rest; `torchrun.py` is
       the shortest example.
    2. `conf/launcher/NAME.yaml`: its first comment line is what `daso-bench list` shows, then `name: NAME`
       and every key. `_target_` is the dotted path of the dataclass. A built-in launcher has no `_target_`:
       it has an entry in `config.launchers.LAUNCHERS`.
    3. A test: `tests/runner/launch/test_launcher.py` adds a launcher from outside and runs it.

    The rest of the program calls these methods and never compares the name of a launcher.
    """

    def refuse(self, config: RunConfig) -> None:
        """Refuse a run that cannot be started. Called before the run has a directory.

        Raises ConfigError for what the user can change, MachineError for what this machine cannot do.
        """

    def remarks(self, config: RunConfig) -> list[str]:
        """What the user has to know before the run starts, line by line; `describe` ends with it."""
        return []

    def processes(self, config: RunConfig) -> int:
        """Number of processes that train: one for each rank, unless one process computes several ranks."""
        return config.cluster.ranks

    def describe(self, config: RunConfig) -> list[str]:
        """What would be started, line by line, for `--dry-run`."""
        return [f"{ranks_in_words(config)}, started by {config.launcher.name}", *self.remarks(config)]

    def run(
        self, directory: RunDirectory, config: RunConfig, on_event: Callable[[Event], None] | None = None
    ) -> Outcome:
        """Run it now and return when all its processes have ended; status.json is written.

        `on_event`: see `supervisor.run_attempt`. Raises ConfigError, MachineError if it cannot be started.
        """
        raise ConfigError(f"launcher={config.launcher.name}: cannot run {directory.run_id} from here")

    def hands_over(self, config: RunConfig) -> bool:
        """Whether the run goes to another program by `hand_over`, instead of being run by `run`."""
        return False

    def hand_over(self, runs: Runs, console: Console) -> int:
        """Give runs, whose directories exist, to the other program, print that, and return the exit code."""
        raise NotImplementedError

    def waits(self, configs: Sequence[RunConfig]) -> bool:
        """Whether `hand_over` returns only after these runs have ended."""
        return False


def launcher_of(config: RunConfig) -> Launcher:
    """The launcher of `config`. Raises ConfigError where `run_by` of its keys names no class."""
    return _launcher(type(config.launcher))


def external_launcher(configs: Iterable[RunConfig | None]) -> Launcher | None:
    """The launcher that hands these runs over; None if this process runs them.

    Raises ConfigError for a mixture.
    """
    launchers = {
        launcher_of(config) if launcher_of(config).hands_over(config) else None
        for config in configs
        if config is not None
    }
    if len(launchers) > 1:
        raise ConfigError("launcher: a sweep goes to one launcher alone; start one sweep for each")
    return next(iter(launchers), None)


def refuse_uneven_nodes(config: RunConfig) -> None:
    """Raise ConfigError where the nodes have different numbers of ranks, which no external starter makes."""
    nodes = config.cluster.ranks_of_nodes
    if len(set(nodes)) > 1:
        starter = config.launcher.name
        raise ConfigError(f"cluster.ranks_per_node={list(nodes)}: {starter} starts as many on every node")


def threads_of(config: RunConfig) -> int:
    """Threads of each process on this machine; `auto` leaves a core to each loader worker."""
    launcher = config.launcher
    setting = launcher.threads_per_rank
    return threads_per_rank(
        "auto" if isinstance(setting, str) else setting,
        launcher_of(config).processes(config),
        workers=launcher.asked_workers,
    )


def cores_of(config: RunConfig) -> int:
    """Threads and loader workers of all processes: the cores that the run can keep busy at once."""
    return launcher_of(config).processes(config) * (threads_of(config) + config.launcher.asked_workers)


def ranks_in_words(config: RunConfig) -> str:
    """For example "4 ranks on 2 nodes (2 x 2)"."""
    nodes = config.cluster.ranks_of_nodes
    shape = f"{len(nodes)} x {nodes[0]}" if len(set(nodes)) == 1 else " + ".join(map(str, nodes))
    return f"{config.cluster.ranks} ranks on {len(nodes)} nodes ({shape})"


@cache
def _launcher(keys: type[LauncherConfig]) -> Launcher:
    try:
        kind = pkgutil.resolve_name(keys.run_by)
    except (ImportError, AttributeError, ValueError) as error:
        raise ConfigError(f"{keys.__qualname__}.run_by={keys.run_by}: cannot be imported: {error}") from error
    if not (isinstance(kind, type) and issubclass(kind, Launcher)):
        raise ConfigError(f"{keys.__qualname__}.run_by={keys.run_by}: must be a subclass of Launcher")
    return kind()
