"""Runs in real processes whose ranks measure instead of training."""

import dataclasses
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from daso_bench.datasets.synthetic import Synthetic
from daso_bench.models.small import MLP
from daso_bench.runner.communication.torch_communicator import TorchCommunicator
from daso_bench.runner.config.cluster import ClusterConfig
from daso_bench.runner.config.launchers import LocalConfig
from daso_bench.runner.config.optimizers import SGD
from daso_bench.runner.config.parts import RunInfo, StudyInfo, TrainConfig
from daso_bench.runner.config.run_config import RunConfig
from daso_bench.runner.config.schedules import Constant
from daso_bench.runner.launch import local
from daso_bench.runner.launch.local import venue_of
from daso_bench.runner.launch.rank import meet
from daso_bench.runner.records.run_directory import Outcome, RunDirectory
from daso_bench.runner.simulation.simulated_world import Recorded
from daso_bench.runner.training.context import Backend, Listener, TrainContext
from daso_bench.runner.training.torch_replica import TorchReplica
from daso_bench.strategies.ddp import DDP

STALL_S = 300.0  # without progress of any rank a run is given up; a model may be compiled meanwhile


def configuration(*, ranks: int = 2, **changes: Any) -> RunConfig:
    """A run on one node; `changes` are fields of `RunConfig`."""
    plain = RunConfig(
        strategy_class=DDP,
        strategy=DDP.Config(),
        model=MLP(hidden=[16]),
        dataset=Synthetic(),
        optimizer=SGD(lr=1e-3),
        schedule=Constant(),
        cluster=ClusterConfig(nodes=1, ranks_per_node=(ranks,)),
        launcher=LocalConfig(),
        train=TrainConfig(epochs=1),
        seed=0,
        run=RunInfo(),
        study=StudyInfo(),
        results_dir=Path("/nowhere"),
    )
    return dataclasses.replace(plain, **changes)


def summary_of(config: RunConfig, entry: str = local.ENTRY) -> dict[str, Any]:
    """What rank 0 of `entry` (module:function) reports. Raises RuntimeError if the run does not finish."""
    return reported(outcome_of(config, entry))


def outcome_of(config: RunConfig, entry: str = local.ENTRY) -> Outcome:
    """How a run ends whose ranks do `entry`, by default training; its directory is gone afterwards."""
    with TemporaryDirectory() as folder:
        return launched(RunDirectory.create(config.tree, Path(folder)), config, entry)


def launched(directory: RunDirectory, config: RunConfig, entry: str = local.ENTRY) -> Outcome:
    """How an attempt at the run in `directory` ends."""
    ranks, venue = config.cluster.ranks, venue_of(config)
    return local.launch(directory, ranks=ranks, threads=1, venue=venue, stall_s=STALL_S, entry=entry)


def reported(outcome: Outcome) -> dict[str, Any]:
    """What rank 0 reported. Raises RuntimeError if the run did not finish."""
    if outcome.status != "finished" or not outcome.summary:
        raise RuntimeError(f"{outcome.status}: {outcome.reason}\n{outcome.details}")
    return outcome.summary


def joined(*arguments: Any) -> tuple[RunConfig, TorchCommunicator]:
    """The configuration of a rank and its communicator; `arguments`: of the rank's entry."""
    return meet(arguments[0])


def context_of(config: RunConfig, comm: TorchCommunicator, listener: Listener | None = None) -> TrainContext:
    """A rank's session, whose records are kept in memory."""
    world = Backend(
        "bench", comm, lambda model, loss: TorchReplica(model, loss, comm), comm.device, common_clock=True
    )
    metrics = Recorded() if comm.rank == 0 else None
    return TrainContext(config, world, config.dataset.load(), Recorded(), metrics, listener)
