"""Short runs on emulated nodes for tests: their configuration, and a supervisor in another process."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from real_runs import members
from runs import config

from daso_bench.runner.config.cluster import ClusterConfig, DeviceConfig, LinkConfig, LinksConfig
from daso_bench.runner.config.launchers import EmulatedConfig
from daso_bench.runner.config.run_config import RunConfig
from daso_bench.runner.records.run_directory import RunDirectory

PROGRAM = "from daso_bench.runner.cli.main import main; main()"
SAMPLES_PER_SECOND = 1600.0  # a batch of 8 is 5 ms
STARTS_S = 40.0


def emulated(
    strategy: str = "ddp",
    *,
    ranks: list[int] | None = None,
    device: dict[str, Any] | None = None,
    rate_gbit: float = 0.1,
    launcher: dict[str, Any] | None = None,
    **more: Any,
) -> RunConfig:
    """A run of `runs.config` on slow links that the kernel makes; what its checks find is recorded.

    `device`: keys of cluster.device. Default: 2 nodes of 1 rank.
    """
    ranks = ranks or [1, 1]
    cluster = ClusterConfig(
        nodes=len(ranks),
        ranks_per_node=tuple(ranks),
        links=LinksConfig(inter=LinkConfig(rate_gbit=rate_gbit), algorithm="ring"),
        device=DeviceConfig(**{"samples_per_second": SAMPLES_PER_SECOND, **(device or {})}),
    )
    keys = {"network": "kernel", "on_invalid": "record", "threads_per_rank": 1, "stall_s": 60.0}
    return replace(
        config(strategy, ranks=ranks, **more),
        cluster=cluster,
        launcher=EmulatedConfig(**{**keys, **(launcher or {})}),
    )


@contextmanager
def supervised(directory: RunDirectory) -> Iterator[subprocess.Popen[str]]:
    """A supervisor in a session of its own, as a terminal would start it, that takes up the run."""
    here = Path(__file__).parent
    searched = (here.parents[1], here, os.environ.get("PYTHONPATH"))  # for the models of `runs`
    process = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, "resume", str(directory.path)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(map(str, filter(None, searched)))},
    )
    try:
        yield process
    finally:
        for pid in members(process.pid):
            os.kill(pid, signal.SIGKILL)
        process.communicate()


def wait_for_checkpoint(directory: RunDirectory) -> None:
    """Until the run is in the middle of its training."""
    until = time.monotonic() + STARTS_S
    while not list(directory.checkpoints.glob("step_*")):
        assert time.monotonic() < until, directory.status()
        time.sleep(0.02)
