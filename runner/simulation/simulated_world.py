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
from ..records.run_directory import Outcome
from ..training.context import Backend, Listener, Rows, TrainContext
from ..training.device_model import Device, Profile, StepTime
from ..training.packed_set import of_run
from ..training.trainer import Trainer
from ..training.workload import workload_of
from .simulated_communicator import SimulatedCommunicator
from .simulated_replica import SimulatedReplica
from .simulator import Simulator
from .stacked_gradients import FEWEST, GradientPool
from .timeline import Timeline
from .timing_only import REMARK, TimedReplica, ghost_batches, scale_of


@dataclass
class Recorded:
    """Rows kept in memory."""

    rows: list[dict[str, Any]] = field(default_factory=list)

    def write(self, row: dict[str, Any]) -> None:
        """Keep a row."""
        self.rows.append(row)


@dataclass
class SimulatedRun:
    """What a run in virtual time leaves, rank by rank."""

    results: list[Outcome]
    contexts: list[TrainContext]

    @property
    def metrics(self) -> Recorded:
        """The rows of the whole run, if they were kept in memory."""
        return _kept(self.contexts[0].metrics)

    @property
    def rank_rows(self) -> list[Recorded]:
        """Each rank's rows, if they were kept in memory."""
        return [_kept(context.rank_rows) for context in self.contexts]


def _kept(rows: Rows | None) -> Recorded:
    assert isinstance(rows, Recorded), "they were written to a file"
    return rows


@dataclass(frozen=True, kw_only=True)
class SimulationSetup:
    """How a configuration is simulated. By default nothing takes time, and rows are kept in memory.

    Args:
        device: of a rank; default: one whose steps take `step_time`.
        profile: of the model whose times are simulated; default: of the configuration's.
        timing_only: nothing is computed (`timing_only`); needs a profile.
        remarks: what every record of the run is to say.
        tick: called where the run makes progress.
        rank_rows, metrics: where each rank's rows and those of the run go.
        until_ns: virtual time at which the run breaks off.
    """

    network: Network | None = None
    step_time: StepTime = lambda rank, samples: 0
    device: Callable[[int], Device] | None = None
    profile: Profile | None = None
    timing_only: bool = False
    remarks: tuple[str, ...] = ()
    tick: Callable[[], None] = lambda: None
    checkpoints: Path | None = None
    attempt: int = 1
    listeners: Callable[[int], Listener | None] = lambda rank: None
    rank_rows: Callable[[int], Rows] = lambda rank: Recorded()
    metrics: Rows = field(default_factory=Recorded)
    loop: Callable[[TrainContext], Trainer] = Trainer
    until_ns: int | None = None
    timeline: Timeline | None = None

    def device_of(self, rank: int) -> Device:
        """The modelled device of a rank."""
        return Device(rank, self.step_time) if self.device is None else self.device(rank)


def simulate(
    config: RunConfig, data: Data, setup: SimulationSetup | None = None, **fields: Any
) -> SimulatedRun:
    """Train `config` on `data` with every rank in virtual time; deterministic, bit for bit.

    `fields`: of a setup, given in its place. Raises OutOfTime where `until_ns` comes before the run's end.
    """
    setup = setup or SimulationSetup(**fields)
    topology = Topology.of(config.cluster.ranks_of_nodes)
    packed = of_run(config.dataset, config.reader, data)
    simulator = Simulator(topology, setup.network, setup.timeline)
    contexts: dict[int, TrainContext] = {}
    criterion = config.task(data.classes).criterion()
    is_stacked = topology.ranks >= FEWEST and not setup.timing_only
    pool = GradientPool(criterion, topology.ranks, setup.tick) if is_stacked else None

    def body(rank: int) -> Outcome:
        comm, device = SimulatedCommunicator(simulator, rank), setup.device_of(rank)
        make_replica: Callable[[nn.Module, nn.Module], SimulatedReplica] = partial(
            SimulatedReplica, comm=comm, device=device, profile=setup.profile, pool=pool
        )
        timed: dict[str, Any] = {}
        if setup.timing_only:
            assert setup.profile is not None, "timing_only needs a profile"
            numel, comm.scale = sum(setup.profile.numels), scale_of(setup.profile)[1]
            make_replica = partial(TimedReplica, comm=comm, device=device, profile=setup.profile)
            timed = {"make_batch": ghost_batches(rank), "parameters": numel}

        def spend(what: str, samples: int) -> None:
            simulator.advance(rank, device.spend_ns(what, samples))

        backend = Backend(
            "simulated",
            comm,
            make_replica,
            torch.device("cpu"),
            started_ns=0,
            spend=spend,
            # A rank that waited for a disk would stop all of them.
            make_workload=partial(workload_of, packed=packed, order_alone=ORDER_ALONE),
            remarks=(*setup.remarks, REMARK) if setup.timing_only else setup.remarks,
            **timed,
        )
        setup.tick()
        contexts[rank] = TrainContext(
            config,
            backend,
            data,
            setup.rank_rows(rank),
            setup.metrics if rank == 0 else None,
            setup.listeners(rank),
            setup.attempt,
            setup.checkpoints,
        )
        return setup.loop(contexts[rank]).run()

    results = simulator.run(body, until_ns=setup.until_ns)
    return SimulatedRun(results, [contexts[rank] for rank in range(topology.ranks)])
