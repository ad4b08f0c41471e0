"""HSGD's sum inside a node, against gloo over loopback, against Open MPI, and against the memory itself.

A point is a payload among so many ranks of one thread. Ours is a barrier, the sum of this rank's columns and
a barrier; the others are all-reduces of the same payload between two such barriers. Rounds in turn, medians.
"""

import json
import os
import shutil
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from daso_bench.strategies.hsgd import column_blocks, sum_columns
from daso_bench.strategies.topology import NODE
from daso_bench.runner.torch_communicator import TorchCommunicator
from figures import Figure
from processes import configuration, joined, summary_of

RANKS, PAYLOADS_MB = (2, 4), (4, 25, 100)
ROUNDS = 9
STREAM_ELEMENTS = 16 * 2**20  # per rank and array, far beyond the caches


def measure() -> list[Figure]:
    """Ratios of medians: theirs over ours, so that more is better."""
    over_gloo: list[float] = []
    figures: list[Figure] = []
    for ranks in RANKS:
        took = summary_of(configuration(ranks=ranks), f"{__name__}:rounds")
        mpi = open_mpi(ranks)
        for megabytes in PAYLOADS_MB:
            ours, gloo = (took[f"{name} {megabytes}"] for name in ("ours", "gloo"))
            point = f"{megabytes}_mb_{ranks}_ranks"
            over_gloo.append(gloo / ours)
            detail = f"gloo {gloo * 1e3:.1f} ms, ours {ours * 1e3:.2f} ms, medians of {ROUNDS}"
            figures.append(Figure(f"shm_over_gloo_{point}", gloo / ours, 3, detail, at_least=True))
            if mpi is not None:
                theirs = mpi[str(megabytes)]
                detail = f"Open MPI {theirs * 1e3:.1f} ms, ours {ours * 1e3:.2f} ms, medians of {ROUNDS}"
                figures.append(Figure(f"shm_over_open_mpi_{point}", theirs / ours, 1, detail, at_least=True))
            # Every row is read once, one is written: ranks + 1 payloads in all, as STREAM counts.
            stream = took[f"stream {megabytes}"]
            bound = (ranks + 1) * megabytes * 1e6 / stream
            limit = 0.6 if megabytes >= 25 else None
            detail = f"memory moves {stream / 1e9:.1f} GB/s (a + b on {ranks} ranks at once)"
            figures.append(Figure(f"shm_of_stream_{point}", bound / ours, limit, detail, at_least=True))
    if shutil.which("mpiexec", path=_path()) is None:
        figures.append(
            Figure("open_mpi", float("nan"), None, "not installed: pip install 'daso-bench[bench]'")
        )
    median = statistics.median(over_gloo)
    points = f"{len(over_gloo)} points"
    return [Figure("shm_over_gloo_median", median, 5, f"of {points}", at_least=True), *figures]


def rounds(
    run_dir: Path, rank: int, ranks: int, port: int, listener: socket.socket | None, threads: int, link: Any
) -> None:
    """A rank of the measurement; rank 0 reports median seconds, and bytes per second of all ranks."""
    _, comm = joined(run_dir, rank, port, listener, threads)
    result: dict[str, float] = {}
    weights = [1 / ranks] * ranks
    a, b, c = (torch.ones(STREAM_ELEMENTS) for _ in range(3))
    for megabytes in PAYLOADS_MB:
        width = int(megabytes * 1e6) // 4 // 16 * 16
        rows = comm.shared(ranks * width, torch.float32, NODE).view(ranks, width)
        rows[rank].fill_(rank)
        private = torch.full((width,), float(rank))
        block = column_blocks(width, ranks)[rank]
        took = _in_turn(
            comm,
            {
                f"ours {megabytes}": lambda rows=rows, block=block: sum_columns(rows, weights, *block),
                f"gloo {megabytes}": lambda private=private: comm.all_reduce(private, NODE).wait(),
                f"stream {megabytes}": lambda: torch.add(a, b, out=c),
            },
        )
        result |= took
        result[f"stream {megabytes}"] = ranks * 3 * 4 * STREAM_ELEMENTS / took[f"stream {megabytes}"]
        link.progress(step=megabytes)
    link.finish("finished", result if rank == 0 else None, None)


def _in_turn(comm: TorchCommunicator, arms: dict[str, Callable[[], Any]]) -> dict[str, float]:
    """Median seconds of each arm from barrier to barrier, the first round left out."""
    seconds: dict[str, list[float]] = {name: [] for name in arms}
    for _ in range(ROUNDS + 1):
        for name, arm in arms.items():
            comm.barrier(NODE, in_memory=True)
            started = time.perf_counter()
            arm()
            comm.barrier(NODE, in_memory=True)
            seconds[name].append(time.perf_counter() - started)
    return {name: statistics.median(taken[1:]) for name, taken in seconds.items()}


def open_mpi(ranks: int) -> dict[str, float] | None:
    """Median seconds of Open MPI's all-reduce by payload (MB), None where it is not installed."""
    if shutil.which("mpiexec", path=_path()) is None:
        return None
    script = (
        "import json, statistics, sys, time\n"
        "import numpy as np\n"
        "from mpi4py import MPI\n"
        "world, result = MPI.COMM_WORLD, {}\n"
        f"for megabytes in {PAYLOADS_MB}:\n"
        "    own = np.full(int(megabytes * 1e6) // 4 // 16 * 16, world.rank, dtype=np.float32)\n"
        "    total, took = np.empty_like(own), []\n"
        f"    for _ in range({ROUNDS} + 1):\n"
        "        world.Barrier()\n"
        "        started = time.perf_counter()\n"
        "        world.Allreduce(own, total)\n"
        "        world.Barrier()\n"
        "        took.append(time.perf_counter() - started)\n"
        "    result[megabytes] = statistics.median(took[1:])\n"
        "if world.rank == 0:\n"
        "    print(json.dumps(result))\n"
    )
    # Open MPI wants to be asked before it runs as root or with more ranks than cores, as containers do.
    allowed = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    command = ["mpiexec", "--oversubscribe", "-n", str(ranks), sys.executable, "-c", script]
    done = subprocess.run(
        command,
        env={**os.environ, "PATH": _path(), **allowed},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    if done.returncode:
        raise RuntimeError(f"Open MPI failed: {done.stderr[-2000:]}")
    return json.loads(done.stdout.splitlines()[-1])


def _path() -> str:
    """Commands of this environment come first: mpiexec of the `bench` extra lies beside the interpreter."""
    return f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"
