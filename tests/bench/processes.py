"""Measuring in real processes: a run that only says how many ranks there are, and an entry that measures."""

import dataclasses
import socket
import tempfile
from pathlib import Path
from typing import Any

import torch

from daso_bench.datasets.synthetic import Synthetic
from daso_bench.models.small import MLP
from daso_bench.strategies.ddp import DDP
from daso_bench.strategies.topology import Topology
from daso_bench.runner import config_tree, local, schema
from daso_bench.runner.hardware import ClusterConfig
from daso_bench.runner.labels import RunInfo, StudyInfo
from daso_bench.runner.launcher_config import LauncherConfig
from daso_bench.runner.optimizers import SGD
from daso_bench.runner.run_directory import RunDirectory
from daso_bench.runner.schedules import Constant
from daso_bench.runner.torch_communicator import TorchCommunicator, connect
from daso_bench.runner.train_config import TrainConfig
from daso_bench.runner.verdict import Outcome


def configuration(*, ranks: int = 2, **changes: Any) -> schema.RunConfig:
    """A run on one node; `changes` are fields of `RunConfig`."""
    plain = schema.RunConfig(
        strategy_class=DDP,
        strategy=DDP.Config(),
        model=MLP(hidden=[16]),
        dataset=Synthetic(),
        optimizer=SGD(lr=1e-3),
        schedule=Constant(),
        cluster=ClusterConfig(nodes=1, ranks_per_node=(ranks,)),
        launcher=LauncherConfig(),
        train=TrainConfig(epochs=1),
        seed=0,
        run=RunInfo(),
        study=StudyInfo(),
        results_dir=Path("/nowhere"),
    )
    return dataclasses.replace(plain, **changes)


def summary_of(config: schema.RunConfig, entry: str) -> dict[str, Any]:
    """What rank 0 of `entry` (module:function) reports, in a run directory that is gone afterwards."""
    outcome = outcome_of(config, entry)
    if outcome.status != "finished" or outcome.summary is None:
        raise RuntimeError(f"{outcome.reason}\n{outcome.details}")
    return outcome.summary


def outcome_of(config: schema.RunConfig, entry: str = local.ENTRY) -> Outcome:
    """How a run ends whose ranks do `entry`, by default the run itself."""
    with tempfile.TemporaryDirectory() as folder:
        directory = RunDirectory.create(config_tree.to_plain(config), Path(folder))
        return local.launch(
            directory, ranks=config.cluster.ranks, threads=1, port=None, stall_s=300, entry=entry
        )


def joined(
    run_dir: Path, rank: int, port: int, listener: socket.socket | None, threads: int
) -> tuple[schema.RunConfig, TorchCommunicator]:
    """The configuration of a rank of such a run, and its communicator."""
    torch.set_num_threads(threads)
    config = config_tree.load(run_dir / "config.yaml")
    comm = connect(
        Topology.of(config.cluster.ranks_of_nodes),
        rank,
        host="127.0.0.1",
        port=port,
        listener_fd=listener.detach() if listener else None,
        device=torch.device("cpu"),
        timeout_s=300,
    )
    return config, comm
