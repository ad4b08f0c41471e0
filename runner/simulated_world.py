"""A whole run in virtual time, in this process: every rank of a configuration against a simulated network."""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import nn

from ..datasets.data import Data
from ..strategies.topology import Topology
from .loop import Loop, Result
from .schema import RunConfig
from .session import Listener, Nobody, Session, World
from .simulated_communicator import SimulatedCommunicator
from .simulated_replica import SimulatedReplica, StepTime
from .simulator import Network, Simulator


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
    """Train `config` on `data` with every rank in virtual time; deterministic, bit for bit."""
    topology = Topology.of(config.cluster.ranks_of_nodes)
    simulator = Simulator(topology, network)
    metrics, own = Recorded(), [Recorded() for _ in range(topology.ranks)]
    sessions: dict[int, Session] = {}

    def body(rank: int) -> Result:
        comm = SimulatedCommunicator(simulator, rank)

        def make_replica(model: nn.Module, criterion: nn.Module) -> SimulatedReplica:
            return SimulatedReplica(model, criterion, comm, step_time)

        world = World("simulated", comm, make_replica, torch.device("cpu"), common_clock=True)
        sessions[rank] = Session(
            config,
            world,
            data,
            own[rank],
            metrics if rank == 0 else None,
            listeners(rank),
            attempt,
            checkpoints,
        )
        return loop(sessions[rank]).run()

    results = simulator.run(body)
    return SimulatedRun(results, metrics, own, [sessions[rank] for rank in range(topology.ranks)])
