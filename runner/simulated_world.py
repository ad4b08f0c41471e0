"""A whole run in virtual time, in this process: every rank of a configuration against a simulated network."""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import nn

from ..datasets.data import Data
from ..strategies.topology import Topology
from .device import Device, Profile, Scripted, StepTime
from .gradient_pool import GradientPool
from .loop import Loop, Result
from .network import Network
from .schema import RunConfig
from .session import Listener, Nobody, Rows, Session, World
from .simulated_communicator import SimulatedCommunicator
from .simulated_replica import SimulatedReplica
from .simulator import Simulator
from .timing_only import REMARK, TimedReplica, ghost_batch, scale_of
from .trace import Timeline


@dataclass
class Recorded:
    """Rows kept in memory."""

    rows: list[dict[str, Any]] = field(default_factory=list)

    def write(self, row: dict[str, Any]) -> None:
        """Keep a row."""
        self.rows.append(row)


@dataclass
class SimulatedRun:
    """What a run in virtual time leaves: rank by rank results, rows and sessions."""

    results: list[Result]
    metrics: Recorded
    own: list[Recorded]
    sessions: list[Session]


@dataclass(frozen=True, kw_only=True)
class Stage:
    """What the ranks of a run in virtual time play on, and who is told. Default: nothing takes time."""

    network: Network | None = None
    device: Callable[[int], Device] = lambda rank: Scripted(rank, lambda rank, samples: 0)
    profile: Profile | None = None
    timing_only: bool = False
    remarks: tuple[str, ...] = ()
    tick: Callable[[], None] = lambda: None
    checkpoints: Path | None = None
    attempt: int = 1
    listener: Callable[[int], Listener] = lambda rank: Nobody()
    own: Callable[[int], Rows] = lambda rank: Recorded()
    metrics: Rows = field(default_factory=Recorded)
    loop: type[Loop] = Loop
    until_ns: int | None = None
    timeline: Timeline | None = None


def play(config: RunConfig, data: Data, stage: Stage) -> tuple[list[Result], list[Session]]:
    """Train `config` on `data` with every rank in virtual time; deterministic, bit for bit.

    Raises OutOfTime where `until_ns` comes before the end of the run.
    """
    topology = Topology.of(config.cluster.ranks_of_nodes)
    simulator = Simulator(topology, stage.network, stage.timeline)
    sessions: dict[int, Session] = {}
    pool = GradientPool(nn.CrossEntropyLoss(), topology.ranks, stage.tick)

    parameters = None if stage.profile is None else sum(stage.profile.numels)

    def timed(rank: int) -> dict[str, Any]:
        assert stage.profile is not None, "timing only is somebody's timing"
        return {
            "batch": lambda samples: ghost_batch(samples, rank),
            "parameters": parameters,
            "remarks": (*stage.remarks, REMARK),
        }

    def body(rank: int) -> Result:
        comm, device = SimulatedCommunicator(simulator, rank), stage.device(rank)
        if stage.timing_only and stage.profile is not None:
            comm.scale = scale_of(stage.profile)[1]

        def make_replica(model: nn.Module, criterion: nn.Module) -> SimulatedReplica:
            if stage.timing_only:
                return TimedReplica(model, criterion, comm, device, stage.profile)
            return SimulatedReplica(model, criterion, comm, device, stage.profile, pool)

        def spend(what: str, samples: int) -> None:
            simulator.advance(rank, device.spend_ns(what, samples))

        more: dict[str, Any] = timed(rank) if stage.timing_only else {"remarks": stage.remarks}
        world = World(
            "simulated",
            comm,
            make_replica,
            torch.device("cpu"),
            common_clock=False,
            started_ns=0,
            spend=spend,
            **more,
        )
        stage.tick()
        sessions[rank] = Session(
            config,
            world,
            data,
            stage.own(rank),
            stage.metrics if rank == 0 else None,
            stage.listener(rank),
            stage.attempt,
            stage.checkpoints,
        )
        return stage.loop(sessions[rank]).run()

    results = simulator.run(body, until_ns=stage.until_ns)
    return results, [sessions[rank] for rank in range(topology.ranks)]


def simulate(
    config: RunConfig,
    data: Data,
    *,
    network: Network | None = None,
    step_time: StepTime = lambda rank, n: 0,
    checkpoints: Path | None = None,
    attempt: int = 1,
    listeners: Callable[[int], Listener] = lambda rank: Nobody(),
    loop: type[Loop] = Loop,
) -> SimulatedRun:
    """`play` with step times given by a function, and all rows kept."""
    metrics, own = Recorded(), [Recorded() for _ in range(config.cluster.ranks)]
    stage = Stage(
        network=network,
        device=lambda rank: Scripted(rank, step_time),
        checkpoints=checkpoints,
        attempt=attempt,
        listener=listeners,
        own=lambda rank: own[rank],
        metrics=metrics,
        loop=loop,
    )
    results, sessions = play(config, data, stage)
    return SimulatedRun(results, metrics, own, sessions)
