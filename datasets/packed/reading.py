"""Runs of records from a file to memory: announced to the system, read, checked, counted."""

import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Executor, wait
from typing import TypeVar

import numpy as np

from .counters import Tally
from .orders import Run, records_of
from .packed_file import Packed

READ_AHEAD_BYTES = 32 * 2**20
WORTH_HELP_BYTES = 512 * 2**10

Item = TypeVar("Item")


def announced(
    packed: Packed,
    items: Iterable[Item],
    runs_of: Callable[[Item], Sequence[Run]],
    tally: Tally,
) -> Iterator[Item]:
    """The items, each given out once the runs of the next `READ_AHEAD_BYTES` of items are announced.

    So the disk has several reads at hand while one thread reads, checks and copies.
    """
    waiting: deque[tuple[Item, int]] = deque()
    ahead = 0
    for item in items:
        size, began = 0, time.perf_counter()
        for run in runs_of(item):
            packed.will_need(run.first, run.count)
            size += packed.size_of(run.first, run.count)
        tally.add(read_s=time.perf_counter() - began)
        waiting.append((item, size))
        ahead += size
        while ahead > READ_AHEAD_BYTES:
            first, size = waiting.popleft()
            ahead -= size
            yield first
    yield from (item for item, _ in waiting)


def read_runs(packed: Packed, runs: Sequence[Run], into: memoryview, tally: Tally, helper: Executor) -> int:
    """Read runs one after another to the beginning of `into` and check them; returns how many bytes.

    A checksum takes longer than the copy that it checks, so `helper`, another thread, does one half, unless
    there is so little to do that it costs more to ask for help.
    Raises DamagedFile.
    """
    runs = [run for run in runs if run.count]  # a rank may have no record in a short last step
    tally.asked(np.array([run.first for run in runs]), np.array([run.end for run in runs]))
    if sum(packed.size_of(run.first, run.count) for run in runs) < WORTH_HELP_BYTES:
        return _read_checked(packed, runs, into, tally)
    ours, theirs = _halves(runs)
    begin = sum(packed.size_of(run.first, run.count) for run in ours)
    half = helper.submit(_read_checked, packed, theirs, into[begin:], tally)
    try:
        size = _read_checked(packed, ours, into, tally)
    finally:
        wait([half])  # nobody writes to `into` once this returns
    return size + half.result()


def _read_checked(packed: Packed, runs: Sequence[Run], into: memoryview, tally: Tally) -> int:
    began, size = time.perf_counter(), 0
    for run in runs:
        size += packed.read(run.first, run.count, into[size:])
    read = time.perf_counter()
    packed.check(records_of(runs), into[:size])
    tally.add(requested_bytes=size, read_s=read - began, checked_s=time.perf_counter() - read)
    return size


def _halves(runs: Sequence[Run]) -> tuple[list[Run], list[Run]]:
    """The runs, cut where half of their records have gone by."""
    left = sum(run.count for run in runs) // 2
    halves: tuple[list[Run], list[Run]] = ([], [])
    for run in runs:
        count = min(run.count, left)
        left -= count
        halves[0].append(Run(first=run.first, count=count))
        halves[1].append(Run(first=run.first + count, count=run.count - count))
    return halves
