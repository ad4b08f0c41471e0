"""The readers of runs: `block`, `node_batch` and `chunked_shuffle`; `strided` has a file of its own.

A reader is a generator of `Load`s for one or more epochs, started at any step of the first. It is driven by
`feeding.Feeder`, a thread that fills slots ahead of those who use them.
"""

import itertools
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache, partial

import numpy as np

from . import orders
from .counters import Tally
from .loads import Load, Reader, Stretch, steps
from .orders import Epoch, Run, Window
from .packed_file import Packed
from .reading import announced, read_runs
from .windows import Windows

CHUNK_BYTES = 4 * 2**20
WINDOW_CHUNKS = 4


def block(packed: Packed, stretches: Iterable[Stretch], rank: int, tally: Tally) -> Reader:
    """The block of `rank`, step by step."""
    loads = (
        (stretch, step, orders.block(stretch.epoch, rank, step), (stretch.epoch.sizes(step)[rank],))
        for stretch, step in steps(stretches)
    )
    return _contiguous(packed, loads, tally)


def node_batch(packed: Packed, stretches: Iterable[Stretch], node: int, tally: Tally) -> Reader:
    """One run a step for all ranks of `node`."""
    loads = (
        (stretch, step, orders.node_batch(stretch.epoch, node, step), _counts(stretch.epoch, node, step))
        for stretch, step in steps(stretches)
    )
    return _contiguous(packed, loads, tally)


def chunked_shuffle(
    packed: Packed,
    stretches: Iterable[Stretch],
    node: int,
    tally: Tally,
    *,
    seed: int,
    chunk_bytes: int = CHUNK_BYTES,
    window_chunks: int = WINDOW_CHUNKS,
) -> Reader:
    """Chunks in an order drawn for each epoch, shuffled in memory `window_chunks` at a time.

    seed: common to all nodes. A window is read while the one before is given out, also the next epoch's.
    """
    stretches = list(stretches)
    all_chunks = orders.chunks(packed.starts(), chunk_bytes)

    @lru_cache(maxsize=2)  # reading is at most one epoch ahead of giving out
    def planned(stretch: Stretch) -> list[Window]:
        return orders.windows(stretch.epoch, all_chunks, seed, stretch.number, node, window_chunks)

    with ThreadPoolExecutor(2) as pool:
        first = stretches[0]
        begun, passed = _begins(planned(first), first.epoch.node_before(node, first.step))
        later = (window for stretch in stretches[1:] for window in planned(stretch))
        most_bytes = window_bytes(packed, all_chunks, window_chunks)
        memory = Windows(packed, itertools.chain(begun, later), passed, most_bytes, tally, pool)
        for stretch in stretches:
            order, given = orders.given_out(planned(stretch)), stretch.epoch.node_before(node, stretch.step)
            for step in range(stretch.step, stretch.epoch.steps):
                counts = _counts(stretch.epoch, node, step)
                records = order[given : given + sum(counts)]
                given += sum(counts)
                fill = partial(memory.copy, sum(counts))
                yield Load(number=stretch.number, step=step, records=records, counts=counts, fill=fill)


def window_bytes(packed: Packed, all_chunks: Sequence[Run], window_chunks: int) -> int:
    """Of a window, at most; two are in memory."""
    largest = max(packed.size_of(chunk.first, chunk.count) for chunk in all_chunks)
    return min(window_chunks * largest, packed.size_of(0, len(packed)))


def _begins(windows: list[Window], given: int) -> tuple[list[Window], int]:
    """The windows that are left after so many records, and how many of the first one's are among those."""
    ends = np.cumsum([len(window.order) for window in windows])
    first = int(np.searchsorted(ends, given, side="right"))
    return windows[first:], given - (int(ends[first - 1]) if first else 0)


def _counts(epoch: Epoch, node: int, step: int) -> tuple[int, ...]:
    members = epoch.members(node)
    return epoch.sizes(step)[members.start : members.stop]


def _contiguous(
    packed: Packed, loads: Iterable[tuple[Stretch, int, Run, tuple[int, ...]]], tally: Tally
) -> Reader:
    with ThreadPoolExecutor(1) as helper:
        for stretch, step, run, counts in announced(packed, loads, lambda load: (load[2],), tally):

            def fill(into: memoryview, run: Run = run) -> None:
                size = read_runs(packed, [run], into, tally, helper)
                tally.add(useful_bytes=size)

            yield Load(number=stretch.number, step=step, records=run.records(), counts=counts, fill=fill)
