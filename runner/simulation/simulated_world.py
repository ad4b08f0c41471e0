"""A whole run in virtual time, in this process: every rank of a configuration against a simulated network."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from ...datasets.data import Data, on_device
from ...strategies.topology import Topology
from ..communication.link_costs import Network
from ..config.run_config import RunConfig
from ..records.run_directory import Outcome
from ..training.context import Backend, Listener, Rows, TrainContext
from ..training.device_model import Device, Profile, StepTime
from ..training.packed_set import PackedSet, of_run
from ..training.trainer import Trainer
from ..training.workload import Workload, workload_of
from .gradient_pool import GradientPool
from .loader_pool import LoaderPool, pool_of
from .simulated_communicator import CPU, SimulatedCommunicator
from .simulated_replica import SimulatedReplica
from .timeline import Timeline
from .timing_only import REMARK, TimedReplica, ghost_batches, scale_of
from .virtual_time import Simulator

READS = False  # packed files: a rank that waited for a disk would stop all of them


@dataclass
class Recorded:
    """Rows kept in memory."""

    rows: list[dict[str, Any]] = field(default_factory=list)

    def write(self, row: dict[str, Any]) -> None:
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


def simulate(
    config: RunConfig,
    data: Data,
    *,
    network: Network | None = None,
    step_time: StepTime = lambda rank, samples: 0,
    device: Callable[[int], Device] | None = None,
    profile: Profile | None = None,
    timing_only: bool = False,
    remarks: tuple[str, ...] = (),
    tick: Callable[[], None] = lambda: None,
    checkpoints: Path | None = None,
    attempt: int = 1,
    listeners: Callable[[int], Listener | None] = lambda rank: None,
    rank_rows: Callable[[int], Rows] = lambda rank: Recorded(),
    metrics: Rows | None = None,
    loop: Callable[[TrainContext], Trainer] = Trainer,
    until_ns: int | None = None,
    timeline: Timeline | None = None,
    pool: GradientPool | None = None,
    computes_on: torch.device = CPU,
) -> SimulatedRun:
    """Train `config` on `data` with every rank in virtual time; deterministic, bit for bit.

    By default nothing takes time, and rows are kept in memory. Raises OutOfTime at `until_ns`, if that comes
    before the run's end.

    device: of a rank; default: one whose steps take `step_time`. profile: of the model whose times are
    simulated; default: of the configuration's. timing_only: nothing is computed; needs a profile. remarks:
    what every record of the run is to say. tick: called where the run makes progress. pool: computes the
    gradients; default: in stacks where the model and the number of ranks allow it. computes_on: where the
    numbers of all ranks lie.
    """
    metrics = Recorded() if metrics is None else metrics
    topology = Topology.of(config.cluster.ranks_of_nodes)
    packed = of_run(config.dataset, config.reader, data)
    data = on_device(data, computes_on, config.launcher.device_data_mib)
    loaders = None if timing_only else pool_of(config, data, computes_on)
    if loaders is not None:
        data = loaders.reading(data)
    simulator = Simulator(topology, network, timeline)
    contexts: dict[int, TrainContext] = {}
    pool = pool or GradientPool(topology.ranks, tick)

    def body(rank: int) -> Outcome:
        comm = SimulatedCommunicator(simulator, rank, computes_on)
        of_rank = Device(rank, step_time) if device is None else device(rank)
        backend = _backend(comm, of_rank, profile, pool, packed, loaders, remarks, computes_on)
        if timing_only:
            assert profile is not None, "timing_only needs a profile"
            backend = _timing_only(backend, comm, of_rank, profile)
        tick()
        contexts[rank] = TrainContext(
            config,
            backend,
            data,
            rank_rows(rank),
            metrics if rank == 0 else None,
            listeners(rank),
            attempt,
            checkpoints,
        )
        return loop(contexts[rank]).run()

    try:
        results = simulator.run(body, until_ns=until_ns)
    finally:
        if loaders is not None:
            loaders.close()
    return SimulatedRun(results, [contexts[rank] for rank in range(topology.ranks)])


def _backend(
    comm: SimulatedCommunicator,
    device: Device,
    profile: Profile | None,
    pool: GradientPool,
    packed: PackedSet | None,
    loaders: LoaderPool | None,
    remarks: tuple[str, ...],
    computes_on: torch.device,
) -> Backend:
    def spend(what: str, samples: int) -> None:
        comm.simulator.advance(comm.rank, device.spend_ns(what, samples))

    def make_workload(*of_rank: Any) -> Workload:
        workload = workload_of(*of_rank, packed=packed, reads=READS, own_workers=False)
        return workload if loaders is None else replace(workload, loader=loaders.loader(workload.loader))

    return Backend(
        "simulated",
        comm,
        partial(SimulatedReplica, comm=comm, device=device, profile=profile, pool=pool),
        computes_on,
        started_ns=0,
        spend=spend,
        make_workload=make_workload,
        remarks=remarks,
    )


def _timing_only(backend: Backend, comm: SimulatedCommunicator, device: Device, profile: Profile) -> Backend:
    """The backend that computes nothing; bytes on `comm` are scaled to the model of `profile`."""
    comm.scale = scale_of(profile)[1]
    return replace(
        backend,
        make_replica=partial(TimedReplica, comm=comm, device=device, profile=profile),
        make_batch=ghost_batches(comm.rank),
        parameters=sum(profile.numels),
        remarks=(*backend.remarks, REMARK),
    )
