"""A whole run in virtual time, in this process: every rank of a configuration against a simulated network."""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn

from ...datasets.data import Data
from ...strategies.topology import Topology
from ..communication.link_costs import Network
from ..config.reader_config import ORDER_ALONE
from ..config.schema import RunConfig
from ..training.context import Backend, Listener, Nobody, Rows, TrainContext
from ..training.device_model import Device, Profile, Scripted, StepTime
from ..training.packed.packed_set import of_run
from ..training.trainer import Result, Trainer
from ..training.workload import workload_of
from .simulated_communicator import SimulatedCommunicator
from .simulated_replica import SimulatedReplica
from .simulator import Simulator
from .stacked_gradients import FEWEST, GradientPool
from .timeline import Timeline
from .timing_only import REMARK, GhostBatches, TimedReplica, scale_of


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
    contexts: list[TrainContext]


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
    loop: type[Trainer] = Trainer
    until_ns: int | None = None
    timeline: Timeline | None = None


def play(config: RunConfig, data: Data, stage: Stage) -> tuple[list[Result], list[TrainContext]]:
    """Train `config` on `data` with every rank in virtual time; deterministic, bit for bit.

    Raises OutOfTime where `until_ns` comes before the end of the run.
    """
    topology = Topology.of(config.cluster.ranks_of_nodes)
    packed = of_run(config.dataset, config.reader, data)
    simulator = Simulator(topology, stage.network, stage.timeline)
    contexts: dict[int, TrainContext] = {}
    criterion = config.task(data.classes).criterion()
    parts = _timed(stage) if stage.timing_only else _trained(stage, criterion, topology.ranks)

    def body(rank: int) -> Result:
        comm, device = SimulatedCommunicator(simulator, rank), stage.device(rank)

        def spend(what: str, samples: int) -> None:
            simulator.advance(rank, device.spend_ns(what, samples))

        backend = Backend(
            "simulated",
            comm,
            device=torch.device("cpu"),
            common_clock=False,
            started_ns=0,
            spend=spend,
            # A rank that waited for a disk would stop all of them.
            make_workload=partial(workload_of, packed=packed, order_alone=ORDER_ALONE),
            **parts(comm, device),
        )
        stage.tick()
        contexts[rank] = TrainContext(
            config,
            backend,
            data,
            stage.own(rank),
            stage.metrics if rank == 0 else None,
            stage.listener(rank),
            stage.attempt,
            stage.checkpoints,
        )
        return stage.loop(contexts[rank]).run()

    results = simulator.run(body, until_ns=stage.until_ns)
    return results, [contexts[rank] for rank in range(topology.ranks)]


Parts = Callable[[SimulatedCommunicator, Device], dict[str, Any]]
"""The fields of a rank's backend that depend on whether there are numbers."""


def _trained(stage: Stage, criterion: nn.Module, ranks: int) -> Parts:
    pool = GradientPool(criterion, ranks, stage.tick) if ranks >= FEWEST else None

    def parts(comm: SimulatedCommunicator, device: Device) -> dict[str, Any]:
        def make_replica(model: nn.Module, criterion: nn.Module) -> SimulatedReplica:
            return SimulatedReplica(model, criterion, comm, device, stage.profile, pool)

        return {"make_replica": make_replica, "remarks": stage.remarks}

    return parts


def _timed(stage: Stage) -> Parts:
    profile = stage.profile
    assert profile is not None, "timing only is somebody's timing"
    parameters, (_, scale) = sum(profile.numels), scale_of(profile)

    def parts(comm: SimulatedCommunicator, device: Device) -> dict[str, Any]:
        comm.scale = scale

        def make_replica(model: nn.Module, criterion: nn.Module) -> SimulatedReplica:
            return TimedReplica(model, criterion, comm, device, profile)

        return {
            "make_replica": make_replica,
            "make_batch": GhostBatches(comm.rank),
            "parameters": parameters,
            "remarks": (*stage.remarks, REMARK),
        }

    return parts


def simulate(
    config: RunConfig,
    data: Data,
    *,
    network: Network | None = None,
    step_time: StepTime = lambda rank, n: 0,
    checkpoints: Path | None = None,
    attempt: int = 1,
    listeners: Callable[[int], Listener] = lambda rank: Nobody(),
    loop: type[Trainer] = Trainer,
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
    results, contexts = play(config, data, stage)
    return SimulatedRun(results, metrics, own, contexts)
