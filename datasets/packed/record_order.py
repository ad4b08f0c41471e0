"""The records of each rank in each step, by layout: pure functions of how an epoch is cut.

The sampler decides the sizes of batches and pieces (`datasets/sampler.py`: largest remainders, and the short
last batch); a layout only decides which records they are. With B the global batch and R ranks:

    strided           dealt to the ranks in turn, batch by batch: q, q + R, q + 2R, … where R divides B
    block             rank r has one run of the file for the whole epoch, and goes through it
    node_batch        batch i is [i·B, (i + 1)·B), rank after rank: sequential order
    chunked_shuffle   runs of about `chunk_bytes` in an order drawn for the epoch, dealt to nodes in turn

Source of the layouts: C. Wang, Y. Lu, Z. Chen, J. Li (2020), DOI 10.1587/transinf.2020PAP0007, says of its
readers only that each reads as contiguously as possible; these are our readings of that.
"""

from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from ..stream_seeds import stream_seed

if TYPE_CHECKING:  # it loads torch, and readers of files run where torch is not loaded
    from ..sampler import Sampler

Records = NDArray[np.int64]


def records_of(runs: Iterable[range]) -> Records:
    """The numbers of the records of runs, one after another, int64."""
    parts = [np.arange(run.start, run.stop, dtype=np.int64) for run in runs]
    return np.concatenate([np.empty(0, dtype=np.int64), *parts])


@dataclass(frozen=True, kw_only=True)
class Epoch:
    """How an epoch is cut: `steps` - 1 steps with `full` samples by rank, then one with `last`.

    batch: samples of a full step; ranks_of_nodes: ranks are numbered node after node.
    """

    batch: int
    steps: int
    full: tuple[int, ...]
    last: tuple[int, ...]
    ranks_of_nodes: tuple[int, ...]

    @classmethod
    def of(
        cls,
        sampler: "Sampler",
        ranks_of_nodes: Sequence[int],
        shares: Sequence[float] | None = None,
        minimum: int = 1,
    ) -> "Epoch":
        """An epoch as the sampler cuts it with these shares, by rank, which hold for all of it."""
        last = sampler.samples_of_rank(sampler.steps_per_epoch - 1, shares, minimum)
        if sum(ranks_of_nodes) != len(last):
            raise ValueError(f"ranks_of_nodes={tuple(ranks_of_nodes)}: must sum to {len(last)} ranks")
        return cls(
            batch=sampler.global_batch_size,
            steps=sampler.steps_per_epoch,
            full=sampler.samples_of_rank(0, shares, minimum) if sampler.steps_per_epoch > 1 else last,
            last=last,
            ranks_of_nodes=tuple(ranks_of_nodes),
        )

    def sizes(self, step: int) -> tuple[int, ...]:
        """Records by rank in a step; IndexError where there is none."""
        if not 0 <= step < self.steps:
            raise IndexError(f"step {step}: an epoch has {self.steps}")
        return self.last if step == self.steps - 1 else self.full

    def before(self, rank: int, step: int) -> int:
        """Records of `rank` in the steps before `step`; with `step` = `steps`, in all."""
        return self.full[rank] * step if step < self.steps else self.before(rank, step - 1) + self.last[rank]

    def members(self, node: int) -> range:
        begin = sum(self.ranks_of_nodes[:node])
        return range(begin, begin + self.ranks_of_nodes[node])

    def node_before(self, node: int, step: int) -> int:
        """Like `before`, of all ranks of a node."""
        return sum(self.before(rank, step) for rank in self.members(node))


@dataclass(frozen=True, kw_only=True)
class EpochSlice:
    """The steps of epoch `number` from `step` on (0-based)."""

    number: int
    epoch: Epoch
    step: int = 0


def steps(slices: Iterable[EpochSlice]) -> Iterator[tuple[EpochSlice, int]]:
    """Every step of every part."""
    for part in slices:
        for step in range(part.step, part.epoch.steps):
            yield part, step


RecordOrder = Callable[[Epoch, int, int, int], Records]
"""Numbers int64 of the records that a rank takes, by (epoch, number of the epoch, rank, step)."""


def strided(epoch: Epoch, number: int, rank: int, step: int) -> Records:
    """A `RecordOrder`: the batch is dealt to the ranks in turn."""
    sizes = np.array(epoch.sizes(step), dtype=np.int64)
    turns = np.arange(sizes[rank], dtype=np.int64)
    # Before turn t of this rank, each rank has had min(t, its size) records, and earlier ranks one more.
    earlier = np.minimum(turns[:, None] + (np.arange(len(sizes)) < rank), sizes).sum(axis=1)
    return step * epoch.batch + earlier


def block(epoch: Epoch, number: int, rank: int, step: int) -> Records:
    """A `RecordOrder`: a part of the rank's block."""
    first = sum(epoch.before(other, epoch.steps) for other in range(rank)) + epoch.before(rank, step)
    return np.arange(first, first + epoch.sizes(step)[rank], dtype=np.int64)


def node_batch(epoch: Epoch, number: int, rank: int, step: int) -> Records:
    """A `RecordOrder`: the batches are runs, of which the ranks take their parts one after another."""
    sizes = epoch.sizes(step)
    first = step * epoch.batch + sum(sizes[:rank])
    return np.arange(first, first + sizes[rank], dtype=np.int64)


def chunks(starts: Records, chunk_bytes: int) -> list[range]:
    """The file in runs: the records that begin in the same `chunk_bytes` of the data.

    starts: int64 [n + 1], where records begin and the last ends. Deterministic, whoever reads.
    """
    if chunk_bytes < 1:
        raise ValueError(f"chunk_bytes={chunk_bytes}: must be >= 1")
    _, firsts = np.unique(starts[:-1] // chunk_bytes, return_index=True)
    return [range(first, end) for first, end in pairwise([*firsts.tolist(), len(starts) - 1])]


def deal(epoch: Epoch, all_chunks: Sequence[range], seed: int, number: int) -> list[list[range]]:
    """The runs of each node in epoch `number`, in the order in which it reads them.

    seed: common to all nodes. Chunks go to the nodes in turn, in an order drawn for the epoch. A node takes
    exactly the records of its ranks, so a chunk may be cut where a node has all: at most one cut a node but
    the last, so that all nodes together have at most nodes - 1 runs more than there are chunks. Where records
    are left out (`short_batch` drop), it is the last ones of the drawn order.
    """
    left = [epoch.node_before(node, epoch.steps) for node in range(len(epoch.ranks_of_nodes))]
    runs: list[list[range]] = [[] for _ in left]
    node = 0
    for place in _drawn(len(all_chunks), seed, "chunk-order", number):
        chunk = all_chunks[place]
        while chunk and any(left):
            while not left[node]:
                node = (node + 1) % len(left)
            taken, chunk = chunk[: left[node]], chunk[left[node] :]
            runs[node].append(taken)
            left[node] -= len(taken)
            node = (node + 1) % len(left)
    return runs


@dataclass(frozen=True, kw_only=True)
class Window:
    """Runs that a node has in memory together; it gives out their records in the order `order`.

    order: int64, places among the records of the runs as they lie one after another.
    """

    runs: tuple[range, ...]
    order: Records


def windows(
    epoch: Epoch, all_chunks: Sequence[range], seed: int, number: int, node: int, window_chunks: int
) -> list[Window]:
    """All windows of a node in epoch `number`, each of `window_chunks` of its runs, the last of fewer.

    The order of each is drawn from a stream of its own.
    """
    runs = deal(epoch, all_chunks, seed, number)[node]
    made = []
    for place, first in enumerate(range(0, len(runs), window_chunks)):
        together = tuple(runs[first : first + window_chunks])
        order = _drawn(sum(map(len, together)), seed, "window-order", number, node, place)
        made.append(Window(runs=together, order=order))
    return made


def given_out(all_windows: Iterable[Window]) -> Records:
    """Numbers int64 of the records of windows in the order in which they are given out."""
    parts = [records_of(window.runs)[window.order] for window in all_windows]
    return np.concatenate([np.empty(0, dtype=np.int64), *parts])


def shuffled(count: int, seed: int | None) -> Records:
    """In what order a file has the samples of a data set, int64 [count]: record k is sample `shuffled[k]`.

    seed: None for the data set's own order.
    """
    return np.arange(count, dtype=np.int64) if seed is None else _drawn(count, seed, "file-order")


def chunked_order(all_chunks: Sequence[range], seed: int, window_chunks: int) -> RecordOrder:
    """The `RecordOrder` of `chunked_shuffle`, with the arguments of its reader."""
    orders: dict[tuple[Epoch, int, int], Records] = {}  # of one epoch by node

    def order(epoch: Epoch, number: int, rank: int, step: int) -> Records:
        node, sizes = bisect_right(list(accumulate(epoch.ranks_of_nodes)), rank), epoch.sizes(step)
        key = epoch, number, node
        if key not in orders:
            for old in [old for old in orders if old[:2] != key[:2]]:
                del orders[old]
            orders[key] = given_out(windows(epoch, all_chunks, seed, number, node, window_chunks))
        first = epoch.node_before(node, step) + sum(sizes[epoch.members(node).start : rank])
        return orders[key][first : first + sizes[rank]]

    return order


def _drawn(count: int, seed: int, *names: str | int) -> Records:
    generator = np.random.Generator(np.random.PCG64(stream_seed(seed, *names)))
    return generator.permutation(count)
