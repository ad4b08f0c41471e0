"""What all readers of packed files share: loads (one a step), counters, and reading runs of records.

Runs are announced to the system, read, checked and counted.
"""

import threading
import time
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import Executor, wait
from dataclasses import asdict, dataclass
from typing import TypeVar

import numpy as np

from .packed_file import Packed
from .record_order import Records, Run, records_of

READ_AHEAD_BYTES = 32 * 2**20
WORTH_HELP_BYTES = 512 * 2**10

Item = TypeVar("Item")


@dataclass(frozen=True, kw_only=True)
class Load:
    """One step of a reader: `records`, one member's after the other's, and how to get them into memory.

    counts: records by member. fill: writes the records, one after another, to the beginning of what it is
    given; raises DamagedFile. Loads are filled in the order in which they are made, each once.
    """

    number: int
    step: int
    records: Records
    counts: tuple[int, ...]
    fill: Callable[[memoryview], None]


Reader = Generator[Load, None, None]
"""The loads of one or more epochs, from any step of the first one on."""


@dataclass(frozen=True, kw_only=True)
class Counters:
    """What reading has cost: sums of one reader since it began.

    requested_bytes: asked of the file; useful_bytes: handed to ranks; reads: calls that ask for a run;
    jumps: of these, the ones that do not start where this reader's read before ended (the first counts);
    read_s: seconds spent in reads, of all threads together; checked_s: seconds spent on checksums;
    waited_s: seconds that ranks stood waiting for data, all ranks together.
    """

    requested_bytes: int = 0
    useful_bytes: int = 0
    reads: int = 0
    jumps: int = 0
    read_s: float = 0.0
    checked_s: float = 0.0
    waited_s: float = 0.0


class Tally:
    """The counters while they grow; any number of threads may count."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._sums: dict[str, float] = asdict(Counters())
        self._end = -1

    def jumped(self, firsts: Records, ends: Records) -> None:
        """Count the jumps among reads of the records [first, end), in the order of use; int64 [reads]."""
        if len(firsts) == 0:
            return
        with self._lock:
            self._sums["jumps"] += int(firsts[0] != self._end) + int((firsts[1:] != ends[:-1]).sum())
            self._end = int(ends[-1])

    def add(self, **amounts: float) -> None:
        """Add to the counters so named."""
        with self._lock:
            for name, amount in amounts.items():
                self._sums[name] += amount

    def counters(self) -> Counters:
        """What was counted so far."""
        with self._lock:
            return Counters(**self._sums)  # pyright: ignore[reportArgumentType] (of its own fields)


def announced(
    packed: Packed, items: Iterable[Item], runs_of: Callable[[Item], Sequence[Run]], tally: Tally
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
    tally.jumped(np.array([run.first for run in runs]), np.array([run.end for run in runs]))
    tally.add(reads=len(runs))
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
