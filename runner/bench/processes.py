"""Measuring in real processes: a run that only says how many ranks there are, and an entry that measures."""

import dataclasses
import socket
import tempfile
from pathlib import Path
from typing import Any

import torch

from ...datasets.synthetic import Synthetic
from ...models.small import MLP
from ...strategies.ddp import DDP
from ...strategies.topology import Topology
from .. import config_tree, local, schema
from ..hardware import ClusterConfig
from ..labels import RunInfo, StudyInfo
from ..launcher_config import LauncherConfig
from ..optimizers import SGD
from ..run_directory import RunDirectory
from ..schedules import Constant
from ..torch_communicator import TorchCommunicator, connect
from ..train_config import TrainConfig
from ..verdict import Outcome


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
