"""The readers of packed files: `strided`, `block`, `node_batch` and `chunked_shuffle`.

A reader yields loads, one a step. Runs of records are announced to the system, read, checked and counted.
"""

import itertools
import threading
import time
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor, wait
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from . import record_order
from .packed_file import Packed
from .record_order import Epoch, EpochSlice, RecordOrder, Records, Window, records_of, steps

READ_AHEAD_BYTES = 32 * 2**20
WORTH_HELP_BYTES = 512 * 2**10
ANNOUNCED = 128  # records of `strided`; 13 to 19 % faster than 32 on the disk of docs/packed.md

Item = TypeVar("Item")


@dataclass(frozen=True, kw_only=True)
class Load:
    """One step of a reader: `records`, member after member, and a function that reads them.

    counts: records by member. fill: writes the records, one after another, to the beginning of the memory it
    gets; raises BadFile. Loads are filled in the order in which they are yielded, each once.
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
    """The cost of reading: sums of one reader since it began.

    requested_bytes: read from the file; useful_bytes: given to ranks; reads: number of runs read;
    jumps: reads that do not start where the read before ended (the first counts); read_s: seconds in reads,
    of all threads together; checked_s: seconds of checksums; waited_s: seconds for which ranks waited for
    data, all ranks together.
    """

    requested_bytes: int = 0
    useful_bytes: int = 0
    reads: int = 0
    jumps: int = 0
    read_s: float = 0.0
    checked_s: float = 0.0
    waited_s: float = 0.0


class CounterTally:
    """Adds up the counters; any number of threads may add."""

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
        with self._lock:
            for name, amount in amounts.items():
                self._sums[name] += amount

    def counters(self) -> Counters:
        with self._lock:
            return Counters(**self._sums)  # pyright: ignore[reportArgumentType] (of its own fields)


def announced(
    packed: Packed, items: Iterable[Item], runs_of: Callable[[Item], Sequence[range]], tally: CounterTally
) -> Iterator[Item]:
    """Yields each item once the runs of the next `READ_AHEAD_BYTES` of items are announced.

    So the disk has several reads queued while one thread reads, checks and copies.
    """
    waiting: deque[tuple[Item, int]] = deque()
    ahead = 0
    for item in items:
        size, began = 0, time.perf_counter()
        for run in runs_of(item):
            packed.will_need(run.start, len(run))
            size += packed.size_of(run.start, len(run))
        tally.add(read_s=time.perf_counter() - began)
        waiting.append((item, size))
        ahead += size
        while ahead > READ_AHEAD_BYTES:
            first, size = waiting.popleft()
            ahead -= size
            yield first
    yield from (item for item, _ in waiting)


def read_runs(
    packed: Packed, runs: Sequence[range], into: memoryview, tally: CounterTally, helper: Executor
) -> int:
    """Read runs one after another to the beginning of `into` and check them; returns the number of bytes.

    A checksum takes longer than the copy, so `helper`, another thread, does one half, unless the runs are so
    small that handing them over costs more. Raises BadFile.
    """
    runs = [run for run in runs if run]  # a rank may have no record in a short last step
    tally.jumped(np.array([run.start for run in runs]), np.array([run.stop for run in runs]))
    tally.add(reads=len(runs))
    if sum(packed.size_of(run.start, len(run)) for run in runs) < WORTH_HELP_BYTES:
        return _read_checked(packed, runs, into, tally)
    ours, theirs = _halves(runs)
    begin = sum(packed.size_of(run.start, len(run)) for run in ours)
    half = helper.submit(_read_checked, packed, theirs, into[begin:], tally)
    try:
        size = _read_checked(packed, ours, into, tally)
    finally:
        wait([half])  # no thread writes to `into` after this function returns
    return size + half.result()


def _read_checked(packed: Packed, runs: Sequence[range], into: memoryview, tally: CounterTally) -> int:
    began, size = time.perf_counter(), 0
    for run in runs:
        size += packed.read(run.start, len(run), into[size:])
    read = time.perf_counter()
    packed.check(records_of(runs), into[:size])
    tally.add(requested_bytes=size, read_s=read - began, checked_s=time.perf_counter() - read)
    return size


def _halves(runs: Sequence[range]) -> tuple[list[range], list[range]]:
    """The runs, cut in the middle of their records."""
    left = sum(map(len, runs)) // 2
    halves: tuple[list[range], list[range]] = ([], [])
    for run in runs:
        halves[0].append(run[:left])
        halves[1].append(run[left:])
        left -= len(halves[0][-1])
    return halves


def _loads(
    slices: Iterable[EpochSlice],
    ranks_of: Callable[[Epoch], Sequence[int]],
    order: RecordOrder,
    fill: Callable[[Records, memoryview], None],
) -> Iterator[Load]:
    """The loads of a reader of the ranks `ranks_of` an epoch; `fill` gets the records of a load."""
    for part, step in steps(slices):
        pieces = [order(part.epoch, part.number, rank, step) for rank in ranks_of(part.epoch)]
        records = np.concatenate(pieces)
        yield Load(
            number=part.number,
            step=step,
            records=records,
            counts=tuple(map(len, pieces)),
            fill=partial(fill, records),
        )


# ------------------------------------------------------------------ one record at a time


def strided(packed: Packed, slices: Iterable[EpochSlice], rank: int, tally: CounterTally) -> Reader:
    """Reads the records of `rank` one by one, as data-parallel training usually does.

    It is the baseline, so it keeps many reads in flight, from step to step: one thread announces `ANNOUNCED`
    records to the system before it reads the first of them, and does nothing per record but announce one,
    read one and compare its checksum. A task per record would cost more than a small record.
    """

    def fill(records: Records, into: memoryview) -> None:
        ends = [0, *packed.ends_in(records)]
        contents = [into[begin:end] for begin, end in itertools.pairwise(ends)]
        began = time.perf_counter()
        packed.read_each(records.tolist(), contents, list(itertools.islice(queue, len(records))))
        read = time.perf_counter()
        packed.check_each(records, contents)
        tally.jumped(records, records + 1)
        tally.add(reads=len(records), requested_bytes=ends[-1], useful_bytes=ends[-1])
        tally.add(read_s=read - began, checked_s=time.perf_counter() - read)

    loads, later = itertools.tee(_loads(slices, lambda epoch: (rank,), record_order.strided, fill))
    queue = itertools.chain.from_iterable(load.records.tolist() for load in later)
    for record in itertools.islice(queue, ANNOUNCED):
        packed.will_need(record, 1)
    yield from loads


# ------------------------------------------------------------------ runs of records


CHUNK_BYTES = 4 * 2**20
WINDOW_CHUNKS = 4


def block(packed: Packed, slices: Iterable[EpochSlice], rank: int, tally: CounterTally) -> Reader:
    """The block of `rank`, step by step."""
    return _one_run_a_step(packed, slices, lambda epoch: (rank,), record_order.block, tally)


def node_batch(packed: Packed, slices: Iterable[EpochSlice], node: int, tally: CounterTally) -> Reader:
    """One run a step for all ranks of `node`."""
    return _one_run_a_step(packed, slices, lambda epoch: epoch.members(node), record_order.node_batch, tally)


def _one_run_a_step(
    packed: Packed,
    slices: Iterable[EpochSlice],
    ranks_of: Callable[[Epoch], Sequence[int]],
    order: RecordOrder,
    tally: CounterTally,
) -> Reader:
    """ranks_of: the ranks of this reader, whose records of a step are adjacent in `order`."""

    def run_of(records: Records) -> range:
        return range(int(records[0]), int(records[-1]) + 1) if len(records) else range(0)

    def fill(records: Records, into: memoryview) -> None:
        tally.add(useful_bytes=read_runs(packed, [run_of(records)], into, tally, helper))

    with ThreadPoolExecutor(1) as helper:
        loads = _loads(slices, ranks_of, order, fill)
        yield from announced(packed, loads, lambda load: (run_of(load.records),), tally)


def chunked_shuffle(
    packed: Packed,
    slices: Iterable[EpochSlice],
    node: int,
    tally: CounterTally,
    *,
    seed: int,
    chunk_bytes: int = CHUNK_BYTES,
    window_chunks: int = WINDOW_CHUNKS,
) -> Reader:
    """Chunks in an order drawn for each epoch, shuffled in memory `window_chunks` at a time.

    seed: common to all nodes. The next window, also of the next epoch, is read while one is in use.
    """
    slices = list(slices)
    all_chunks = record_order.chunks(packed.starts(), chunk_bytes)
    content = np.empty(0, dtype=np.uint8)  # of the window in use
    starts = places = np.empty(0, dtype=np.int64)  # of its records in `content`; which are still to be given

    def fill(records: Records, into: memoryview) -> None:
        nonlocal content, starts, places
        done, missing = 0, len(records)
        while missing:
            if len(places) == 0:
                window, content = next(contents)
                starts, places = np.array([0, *packed.ends_in(records_of(window.runs))]), window.order
            given, places = places[:missing], places[missing:]
            done += _gather(content, starts, given, packed.record_bytes, into[done:])
            missing -= len(given)
        tally.add(useful_bytes=done)

    def windows() -> Iterator[Window]:
        for part in slices:
            of_part = record_order.windows(part.epoch, all_chunks, seed, part.number, node, window_chunks)
            yield from _after(part.epoch.node_before(node, part.step), of_part)

    order = record_order.chunked_order(all_chunks, seed, window_chunks)
    largest = max(packed.size_of(chunk.start, len(chunk)) for chunk in all_chunks)
    most_bytes = min(window_chunks * largest, packed.size_of(0, len(packed)))
    with ThreadPoolExecutor(2) as pool:
        contents = _one_ahead(packed, windows(), most_bytes, tally, pool)
        yield from _loads(slices, lambda epoch: epoch.members(node), order, fill)


def _after(given: int, windows: Iterable[Window]) -> Iterator[Window]:
    """What remains of the windows after `given` records."""
    for window in windows:
        if given < len(window.order):
            yield replace(window, order=window.order[given:])
        given = max(0, given - len(window.order))


def _gather(
    content: NDArray[np.uint8], starts: Records, places: Records, record_bytes: int | None, into: memoryview
) -> int:
    """Copy the records at these places of a window to the beginning of `into`; returns the bytes.

    starts: int64 [n + 1], where the records of `content` begin and the last ends.
    """
    if record_bytes is not None:
        rows = content[: starts[-1]].reshape(-1, record_bytes)
        target = np.frombuffer(into, np.uint8, len(places) * record_bytes).reshape(-1, record_bytes)
        np.take(rows, places, axis=0, out=target, mode="clip")  # the mode that copies straight to `out`
        return target.size
    done = 0
    for first, end in zip(starts[places].tolist(), starts[places + 1].tolist(), strict=True):
        into[done : done + end - first] = content.data[first:end]
        done += end - first
    return done


def _one_ahead(
    packed: Packed,
    windows: Iterator[Window],
    most_bytes: int,
    tally: CounterTally,
    pool: ThreadPoolExecutor,
) -> Iterator[tuple[Window, NDArray[np.uint8]]]:
    """The windows and the bytes of their runs, one after another; the next is read while one is used.

    most_bytes: of a window; pool: two threads that read. There are two places in memory: when window w + 1 is
    requested, window w is no longer used, and only then does the read of w + 2 begin, into the same place.
    """
    memory = np.empty((2, most_bytes), dtype=np.uint8)  # pages that are never used cost nothing

    def read() -> Iterator[tuple[Window, NDArray[np.uint8]]]:
        ahead = announced(packed, windows, lambda window: window.runs, tally)
        for number, window in enumerate(ahead):
            content = memory[number % 2]
            read_runs(packed, window.runs, content.data, tally, pool)
            yield window, content

    reads = read()
    coming = pool.submit(next, reads, None)
    while (item := coming.result()) is not None:
        coming = pool.submit(next, reads, None)
        yield item
