"""From the request to four ranks that could take their first step, with torch preloaded."""

import socket
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

from ...datasets.digits import Digits
from ...models.small import SmallCNN
from ...strategies.ddp import DDP
from ...strategies.topology import WORLD, Topology
from .. import local, schema
from ..optimizers import SGD
from ..run_directory import RunDirectory
from ..schedules import Constant
from ..session import Session, World
from ..simulated_world import Recorded
from ..torch_communicator import connect
from ..torch_replica import TorchReplica
from .figures import Figure

STARTS, LIMIT_S = 5, 2.0


def measure() -> list[Figure]:
    """Median seconds of a start, its clean end included, after one that loads torch."""
    took = []
    for start in range(STARTS + 1):
        with tempfile.TemporaryDirectory() as folder:
            config = schema.RunConfig(
                strategy_class=DDP,
                strategy=DDP.Config(),
                model=SmallCNN(),
                dataset=Digits(),
                optimizer=SGD(),
                schedule=Constant(),
                cluster=schema.ClusterConfig(),
                launcher=schema.LauncherConfig(),
                train=schema.TrainConfig(),
                seed=start,
                run=schema.RunInfo(),
                study=schema.StudyInfo(),
                results_dir=Path(folder),
            )
            directory = RunDirectory.create(schema.to_plain(config), config.results_dir)
            started = time.perf_counter()
            outcome = local.launch(
                directory, ranks=4, threads=1, port=None, stall_s=60, entry=f"{__name__}:ready"
            )
            took.append(time.perf_counter() - started)
            if outcome.status != "finished":
                raise RuntimeError(f"{outcome.reason}\n{outcome.details}")
    warm = took[1:]
    detail = (
        f"median of {STARTS} starts and ends of 4 ranks; the first, which loads torch, took {took[0]:.1f} s"
    )
    return [Figure("start_4_ranks_s", statistics.median(warm), LIMIT_S, detail)]


def ready(
    run_dir: Path, rank: int, ranks: int, port: int, listener: socket.socket | None, threads: int, link: Any
) -> None:
    """A rank that meets the others, builds everything, does the undone step and leaves."""
    torch.set_num_threads(threads)
    config = schema.load(run_dir / "config.yaml")
    device = torch.device("cpu")
    comm = connect(
        Topology.of(config.cluster.ranks_of_nodes),
        rank,
        host="127.0.0.1",
        port=port,
        listener_fd=listener.detach() if listener else None,
        device=device,
        timeout_s=60,
    )
    world = World("bench", comm, lambda model, criterion: TorchReplica(model, criterion, comm), device, True)
    Session(config, world, config.dataset.load(), Recorded(), None).prepare()
    comm.barrier(WORLD)
    link.finish("finished", {}, None)
