"""HSGD's sum inside a node, against gloo over loopback and against the memory itself.

A point is a payload among so many ranks of one thread. Ours is a barrier, the sum of this rank's columns and
a barrier; gloo's is an all-reduce of the same payload between two such barriers. Rounds in turn, medians.
"""

import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
from figures import Figure
from processes import configuration, joined, summary_of

from daso_bench.runner.communication.torch_communicator import TorchCommunicator
from daso_bench.strategies.hsgd import column_blocks, sum_columns
from daso_bench.strategies.topology import NODE

RANKS, PAYLOADS_MB = (2, 4), (4, 25, 100)
ROUNDS = 9
STREAM_ELEMENTS = 16 * 2**20  # per rank and array, far beyond the caches


def shared_memory() -> list[Figure]:
    """Ratios of medians: theirs over ours, so that more is better."""
    over_gloo: list[float] = []
    figures: list[Figure] = []
    for ranks in RANKS:
        took = summary_of(configuration(ranks=ranks), f"{__name__}:rounds")
        for megabytes in PAYLOADS_MB:
            ours, gloo = (took[f"{name} {megabytes}"] for name in ("ours", "gloo"))
            point = f"{megabytes}_mb_{ranks}_ranks"
            over_gloo.append(gloo / ours)
            detail = f"gloo {gloo * 1e3:.1f} ms, ours {ours * 1e3:.2f} ms, medians of {ROUNDS}"
            figures.append(Figure(f"shm_over_gloo_{point}", gloo / ours, 3, detail, at_least=True))
            # Every row is read once, one is written: ranks + 1 payloads in all, as STREAM counts.
            stream = took[f"stream {megabytes}"]
            bound = (ranks + 1) * megabytes * 1e6 / stream
            limit = 0.6 if megabytes >= 25 else None
            detail = f"memory moves {stream / 1e9:.1f} GB/s (a + b on {ranks} ranks at once)"
            figures.append(Figure(f"shm_of_stream_{point}", bound / ours, limit, detail, at_least=True))
    median, points = statistics.median(over_gloo), f"of {len(over_gloo)} points"
    return [Figure("shm_over_gloo_median", median, 5, points, at_least=True), *figures]


def rounds(*arguments: Any) -> None:
    """A rank of the measurement; rank 0 reports median seconds, and bytes per second of all ranks."""
    config, comm = joined(*arguments)
    rank, ranks = comm.rank, config.cluster.ranks
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
        arguments[-1].progress(step=megabytes)
    arguments[-1].finish("finished", result, None)


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
