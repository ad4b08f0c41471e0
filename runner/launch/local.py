"""Launchers for this machine: a forked process per rank, and the network on which the ranks meet."""

from __future__ import annotations

import multiprocessing
import os
import socket
import subprocess
import sys
import types
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from multiprocessing import forkserver, resource_tracker
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Self

from ...strategies.errors import MachineError
from ..config.launchers import LocalConfig
from ..machine.cores import apart_here, keep_awake, threads_per_rank, timing_reasons, usable_cores
from ..machine.signals import SUPERVISOR_VARIABLE, signals_blocked
from ..records.run_directory import Outcome, RunDirectory
from .emulated.nodes import Nodes, impossible
from .failures import Rank
from .launcher import Launcher, ranks_in_words, threads_of
from .rank_process import Meeting, RankTask, run_rank_process
from .supervisor import PATIENCE_S, Event, Ranks, run_attempt

if TYPE_CHECKING:
    from ..config.run_config import RunConfig  # loads torch, which no supervisor needs
    from ..simulation.memory_plan import MemoryPlan

HOST = "127.0.0.1"
ENTRY = "daso_bench.runner.launch.rank:run_rank"
ALL_RANKS = "daso_bench.runner.launch.rank:run_all"  # all ranks in one process
PRELOAD = ("torch", "torch._dynamo", "daso_bench.runner.launch.rank")
_ALWAYS_PRELOADED = ("daso_bench.runner.machine.signals", "daso_bench.runner.launch.rank_process")
# While it loads, the forkserver must start no pool of threads: a forked child would inherit its locks but
# not its threads. The ranks set their own number (torch.set_num_threads).
_SINGLE_THREADED = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")


class LocalLauncher(Launcher):
    """`launcher=local` and `launcher=emulated`: a process for each rank on this machine."""

    entry = ENTRY

    def refuse(self, config: RunConfig) -> None:
        ranks, cores = config.cluster.ranks, usable_cores()
        if not config.launcher.allow_oversubscription and ranks > cores:
            raise MachineError(
                f"launcher.allow_oversubscription=false: {ranks} ranks, only {cores} usable cores here"
            )
        if config.launcher.pin:
            apart_here(ranks, threads_of(config) + config.launcher.asked_workers)

    def describe(self, config: RunConfig) -> list[str]:
        launcher = config.launcher
        each = _counted(threads_of(config), "thread")
        if launcher.asked_workers:
            each += f" + {_counted(launcher.asked_workers, 'loader worker')}"
        return [f"{ranks_in_words(config)}, {each} each, {launcher.name}", *self.remarks(config)]

    def remarks(self, config: RunConfig) -> list[str]:
        import torch  # loaded by now, as `config` shows; not in a supervisor

        launcher, device, count = config.launcher, config.cluster.device, torch.cuda.device_count()
        ranks = sum(launcher.takes_gpu(device.kind_of(rank)) for rank in range(config.cluster.ranks))
        if not 0 < count < ranks or not launcher.may_share_gpus(device.kind):
            return []
        shared = f"{_counted(ranks, 'rank')} share {_counted(count, 'GPU')}, joined by gloo"
        return [f"{shared}: its times are not valid (launcher.share_gpus={launcher.share_gpus})"]

    def run(
        self, directory: RunDirectory, config: RunConfig, on_event: Callable[[Event], None] | None = None
    ) -> Outcome:
        return launch(
            directory,
            ranks=self.processes(config),
            threads=threads_of(config),
            workers=0 if config.launcher.virtual else config.launcher.asked_workers,  # of timing: cores
            pin=config.launcher.pin,
            venue=venue_of(config),
            stall_s=config.launcher.stall_s,
            entry=self.entry,
            on_event=on_event,
        )


class SimulatedLauncher(LocalLauncher):
    """`launcher=simulated`: one process computes all ranks, in virtual time."""

    entry = ALL_RANKS

    def refuse(self, config: RunConfig) -> None:
        """Virtual ranks need no cores, but memory."""
        if (plan := self._memory(config)) is not None:
            plan.check()

    def processes(self, config: RunConfig) -> int:
        return 1

    def describe(self, config: RunConfig) -> list[str]:
        return [f"1, for {ranks_in_words(config)} in virtual time", *self.remarks(config)]

    def remarks(self, config: RunConfig) -> list[str]:
        plan = self._memory(config)
        return [] if plan is None else [plan.words()]

    def _memory(self, config: RunConfig) -> MemoryPlan | None:
        from ..simulation.memory_plan import planned  # loads torch, which no supervisor needs

        return planned(config)


class Loopback:
    """All ranks on this machine's loopback interface: the network of a run, as `Nodes` is one.

    Entering opens the port of the rendezvous, `port` or a free one for None. `lacking`: why the kernel does
    not make the links that were asked for.
    """

    keep_awake = False

    def __init__(self, port: int | None, *, modelled: bool = False, lacking: str | None = None) -> None:
        self._asked = port
        known = {"network": {"made_by": "ranks", "instead_of_kernel": lacking}} if modelled else {}
        self.meeting = Meeting(network="modelled" if modelled else "none", known=known)

    def __enter__(self) -> Self:
        self.listener = _listen(self._asked)
        self.port: int = self.listener.getsockname()[1]
        return self

    def __exit__(self, *_: object) -> None:
        self.listener.close()

    def node(self, rank: int) -> None:
        """No rank has a network of its own."""

    def broken(self) -> str | None:
        """The loopback never breaks."""
        return None


Venue = Loopback | Nodes


def venue_of(config: RunConfig) -> Venue:
    """The network for the ranks of `config`; with `launcher.network=auto` the kernel's if it can make one.

    If it cannot, the reason is in environment.json and in the run's labels.
    """
    launcher, cluster = config.launcher, config.cluster
    network, lacking = launcher.asked_network, None
    if network == "auto":
        lacking = cluster.kernel_lacks() or impossible(cluster.links.inter.latency_us)
        network = "kernel" if lacking is None else "modelled"
    if network == "kernel":
        venue = Nodes(cluster.ranks_of_nodes, cluster.links.inter, cluster.links.node_speeds)
    else:
        venue = Loopback(launcher.port, modelled=network == "modelled", lacking=lacking)
    venue.keep_awake = network != "none" and isinstance(launcher, LocalConfig) and launcher.keep_awake
    return venue


def _listen(port: int | None) -> socket.socket:
    """An open, listening socket: a port that no other run can take from now on."""
    try:
        return socket.create_server((HOST, port or 0), backlog=1024)
    except OSError as error:
        raise MachineError(
            f"launcher.port={port}: cannot be used on {HOST}: {os.strerror(error.errno or 0)}; "
            "launcher.port=null takes a free one"
        ) from error


def warm(preload: Sequence[str] = PRELOAD) -> None:
    """Start the forkserver, which then loads `preload` on its own time; no-op if it runs with the same list.

    Call it from the main thread: the kernel ties the forkserver's life to the thread that started it.
    Raises MachineError if it cannot be started.
    """
    server = forkserver._forkserver  # pyright: ignore[reportPrivateUsage] (no public way to stop it)
    modules = [*_ALWAYS_PRELOADED, *preload]
    if server._preload_modules != modules:  # pyright: ignore[reportAttributeAccessIssue]
        server._stop()  # pyright: ignore[reportAttributeAccessIssue] (does nothing if none runs)
        multiprocessing.get_context("forkserver").set_forkserver_preload(modules)
    with _forkserver_environment(), no_main():
        try:
            # First, and by itself: once started it unblocks the signals that the forkserver must not hear.
            resource_tracker.ensure_running()
            with signals_blocked():
                forkserver.ensure_running()
        except OSError as error:
            raise MachineError(f"cannot start processes (folder for sockets: TMPDIR): {error}") from error


def launch(
    directory: RunDirectory,
    *,
    ranks: int,
    threads: int | Literal["auto"],
    workers: int = 0,
    pin: bool = False,
    port: int | None = None,
    venue: Venue | None = None,
    stall_s: float,
    patience_s: float = PATIENCE_S,
    entry: str = ENTRY,
    on_event: Callable[[Event], None] | None = None,
    preload: Sequence[str] = PRELOAD,
) -> Outcome:
    """Run `directory` with `ranks` processes and watch it to its end; status.json is kept up to date.

    `threads`: per rank; `workers`: loader processes of each rank; `pin`: each rank has as many cores
    of its own. `venue`: the network on which they meet; None: the loopback, at `port` (None: a free one).
    `stall_s`: seconds without progress of any rank after which the run is given up. `patience_s`: seconds
    that an interrupt leaves the ranks to save and stop in good order. `on_event`: see `run_attempt`.

    Raises ConfigError if another process runs this run or a setting is wrong, MachineError if the venue (its
    port, its networks, cores to pin to) is not available or the directory cannot be written: all before
    the attempt begins, so nothing has changed.
    Raises MachineError if processes cannot be started; that is a failed attempt.
    """
    venue = venue or Loopback(port)
    per_rank = threads_per_rank(threads, ranks, workers=workers)
    cores = apart_here(ranks, per_rank + workers) if pin else [()] * ranks
    forked = _Forked(directory, venue, cores, per_rank, workers, entry, preload)
    return run_attempt(directory, forked, stall_s=stall_s, patience_s=patience_s, on_event=on_event)


@dataclass
class _Forked(Ranks):
    """Ranks that the forkserver forks. Entering enters their venue, before anything changes."""

    directory: RunDirectory
    venue: Venue
    cores: Sequence[tuple[int, ...]]  # by rank, those that it is bound to; () for none
    threads: int
    workers: int
    entry: str
    preload: Sequence[str]
    _awake: Sequence[subprocess.Popen[bytes]] = ()  # the processes that keep cores awake

    def __enter__(self) -> Self:
        self.venue.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        for process in self._awake:
            process.kill()
            process.wait()
        self.venue.__exit__()

    def about(self) -> dict[str, Any]:
        if self.venue.meeting.network != "none":  # the ranks measure themselves whether they have room
            return {"timing": {"valid": False, "reasons": ["its validity is not checked yet"]}}
        reasons = timing_reasons(len(self.cores), self.threads, usable_cores(), self.workers)
        return {"timing": {"valid": not reasons, "reasons": reasons}}

    def broken(self) -> str | None:
        return self.venue.broken()

    def start(self, started: list[Rank]) -> dict[str, Any]:
        warm(self.preload)
        venue, meeting = self.venue, self.venue.meeting
        if venue.keep_awake:
            self._awake = keep_awake()
            meeting = replace(meeting, awake=tuple(process.pid for process in self._awake))
        for rank, cores in enumerate(self.cores):
            task = RankTask(
                run_dir=self.directory.path,
                rank=rank,
                ranks=len(self.cores),
                port=venue.port,
                threads=self.threads,
                entry=self.entry,
                listener=None if rank else venue.listener,
                meeting=meeting,
                node=venue.node(rank),
                cores=cores,
            )
            started.append(_start_rank(task, self.directory.rank_log(rank)))
        if venue.listener is not None:
            # Rank 0 has it; were it open here too, its death would leave others waiting.
            venue.listener.close()
        pids = [rank.process.pid for rank in started]
        return {"ranks": len(started), "threads": self.threads, "port": venue.port, "pids": pids}


def _start_rank(task: RankTask, log: Path) -> Rank:
    """Start one rank with its end of the line to the supervisor."""
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    process: ForkServerProcess = multiprocessing.get_context("forkserver").Process(
        target=run_rank_process, args=(task, theirs), name=f"rank {task.rank}"
    )
    try:
        with closing(theirs), no_main():
            process.start()
    except (OSError, EOFError) as error:
        ours.close()
        raise MachineError(f"rank {task.rank} cannot be started: {error or 'the forkserver died'}") from error
    return Rank(number=task.rank, process=process, line=ours, log=log)


@contextmanager
def _forkserver_environment() -> Iterator[None]:
    """Variables that the forkserver inherits and that this process does not keep."""
    changed = {
        SUPERVISOR_VARIABLE: str(os.getpid()),
        "PYTHONSAFEPATH": "1",  # else a random.py in the user's folder would be imported for the library's
        **dict.fromkeys(_SINGLE_THREADED, "1"),
    }
    before = {name: os.environ.get(name) for name in changed}
    os.environ.update(changed)
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name)
            if value is not None:
                os.environ[name] = value


@contextmanager
def no_main() -> Iterator[None]:
    """Hide `__main__` from multiprocessing, which would run the user's script again in every rank."""
    main = sys.modules["__main__"]
    sys.modules["__main__"] = types.ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = main


def _counted(count: int, what: str) -> str:
    return f"{count} {what}{'s' * (count != 1)}"
