"""From the request to four ranks that could take their first step, with torch preloaded."""

import socket
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

from daso_bench.datasets.digits import Digits
from daso_bench.models.small import SmallCNN
from daso_bench.strategies.topology import WORLD
from daso_bench.runner import config_tree, local
from daso_bench.runner.hardware import ClusterConfig
from daso_bench.runner.run_directory import RunDirectory
from daso_bench.runner.session import Session, World
from daso_bench.runner.simulated_world import Recorded
from daso_bench.runner.torch_replica import TorchReplica
from figures import Figure
from processes import configuration, joined

STARTS, LIMIT_S = 5, 2.0


def measure() -> list[Figure]:
    """Median seconds of a start, its clean end included, after one that loads torch."""
    took = []
    for start in range(STARTS + 1):
        with tempfile.TemporaryDirectory() as folder:
            config = configuration(model=SmallCNN(), dataset=Digits(), cluster=ClusterConfig(), seed=start)
            directory = RunDirectory.create(config_tree.to_plain(config), Path(folder))
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
    config, comm = joined(run_dir, rank, port, listener, threads)
    device = comm.device
    world = World("bench", comm, lambda model, criterion: TorchReplica(model, criterion, comm), device, True)
    Session(config, world, config.dataset.load(), Recorded(), None).prepare()
    comm.barrier(WORLD)
    link.finish("finished", {}, None)
