"""The `strided` reader: a rank reads its records one by one, many of them in flight, in one of two ways.

By 32 threads in `pread`; or by one thread that announces 128 records to the system before it reads the first
of them. Which is faster depends on cores and disk; a fair comparison takes the better one. Both keep reads in
flight from step to step, and do nothing per record but the read and its checksum: a task per record, or an
empty queue at the end of a small step, costs more than a small record.
"""

import itertools
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from functools import partial

import numpy as np

from . import record_order
from .packed_file import Packed
from .readers import CounterTally, Load, Reader
from .record_order import Records, Stretch, steps

READS_IN_FLIGHT = 32
ANNOUNCED = 128  # records; 13 to 19 % faster than 32 on the disk of docs/packed.md
LOT_BYTES = 16 * 2**20
LOTS_AHEAD = 2  # keeps reads in flight at the end of a lot

_Step = tuple[Stretch, int, Records]
"""A step of a stretch, and its records."""
_Lot = tuple[list[_Step], memoryview, list[Future[None]]]
"""Some steps, memory for the records of all of them, and the reads by which these get there."""


def strided(
    packed: Packed, stretches: Iterable[Stretch], rank: int, tally: CounterTally, *, threads: bool = True
) -> Reader:
    """Reads the records of `rank` one by one."""
    wanted = ((s, step, record_order.strided(s.epoch, s.number, rank, step)) for s, step in steps(stretches))
    reads = _Reads(packed, tally)
    return _by_threads(reads, wanted) if threads else _announced(reads, wanted)


class _Reads:
    """Reads of single records of a file, checked and counted."""

    def __init__(self, packed: Packed, tally: CounterTally) -> None:
        self.packed, self._tally = packed, tally

    def bytes_of(self, records: Records) -> int:
        """Bytes of the records."""
        ends = self.packed.ends_in(records)
        return ends[-1] if len(ends) else 0

    def cut(self, records: Records, content: memoryview) -> list[memoryview]:
        """The memory of each record, which lie in `content` one after another."""
        return [content[begin:end] for begin, end in itertools.pairwise([0, *self.packed.ends_in(records)])]

    def read(self, records: Records, into: list[memoryview], upcoming: Sequence[int] = ()) -> None:
        """Read, count and check. upcoming: records to announce meanwhile."""
        began = time.perf_counter()
        self.packed.read_each(records.tolist(), into, upcoming)
        read = time.perf_counter()
        size = self.bytes_of(records)
        self._tally.add(reads=len(records), requested_bytes=size, read_s=read - began)
        self.packed.check_each(records, into)
        self._tally.add(checked_s=time.perf_counter() - read)

    def begin(self, records: Records, content: memoryview, pool: ThreadPoolExecutor) -> list[Future[None]]:
        """Start to read the records to `content`, in all threads, those of the first steps first."""
        into, n = self.cut(records, content), READS_IN_FLIGHT
        return [pool.submit(self.read, records[k::n], into[k::n]) for k in range(min(n, len(records)))]

    def load(self, step: _Step, get: Callable[[memoryview], None]) -> Load:
        """The load of a step, which `get` fills.

        Useful bytes and jumps are counted in the order of the steps, whichever thread has read.
        """
        stretch, number, records = step

        def fill(into: memoryview) -> None:
            get(into)
            self._tally.jumped(records, records + 1)
            self._tally.add(useful_bytes=self.bytes_of(records))

        return Load(number=stretch.number, step=number, records=records, counts=(len(records),), fill=fill)


def _announced(reads: _Reads, wanted: Iterator[_Step]) -> Reader:
    """While a step is read, records of the following steps are announced."""
    wanted, later = itertools.tee(wanted)
    queue = itertools.chain.from_iterable(records.tolist() for _, _, records in later)
    for record in itertools.islice(queue, ANNOUNCED):
        reads.packed.will_need(record, 1)

    def get(records: Records, upcoming: list[int], into: memoryview) -> None:
        reads.read(records, reads.cut(records, into), upcoming)

    for step in wanted:
        records = step[2]
        yield reads.load(step, partial(get, records, list(itertools.islice(queue, len(records)))))


def _by_threads(reads: _Reads, wanted: Iterator[_Step]) -> Reader:
    """Threads read lots of steps ahead, each thread every 32nd record of a lot."""

    def get(records: Records, into: memoryview) -> None:
        futures = reads.begin(records, into, pool)
        wait(futures)  # no thread writes to `into` after this function returns
        for future in futures:
            future.result()

    with ThreadPoolExecutor(READS_IN_FLIGHT) as pool:
        started: deque[_Lot] = deque()
        try:
            for lot in _lots(reads, wanted):
                records = lot[0][2]
                if reads.bytes_of(records) >= LOT_BYTES:
                    # Such a step is read alone, and directly into its slot.
                    while started:
                        yield from _loads(reads, started.popleft())
                    yield reads.load(lot[0], partial(get, records))
                    continue
                started.append(_begun(reads, lot, pool))
                if len(started) > LOTS_AHEAD:
                    yield from _loads(reads, started.popleft())
            while started:
                yield from _loads(reads, started.popleft())
        finally:
            pool.shutdown(cancel_futures=True)


def _lots(reads: _Reads, wanted: Iterator[_Step]) -> Iterator[list[_Step]]:
    """Steps in lots of at most `LOT_BYTES`, larger steps alone; the first lot has one step.

    A lot has at most twice as many steps as the one before, because a step waits for all of its lot.
    """
    lot: list[_Step] = []
    size, most = 0, 1
    for step in wanted:
        step_bytes = reads.bytes_of(step[2])
        if lot and (len(lot) == most or size + step_bytes > LOT_BYTES):
            yield lot
            most, lot, size = 2 * len(lot), [], 0
        lot.append(step)
        size += step_bytes
    if lot:
        yield lot


def _begun(reads: _Reads, lot: list[_Step], pool: ThreadPoolExecutor) -> _Lot:
    records = np.concatenate([records for _, _, records in lot])
    content = np.empty(reads.bytes_of(records), dtype=np.uint8).data
    return lot, content, reads.begin(records, content, pool)


def _loads(reads: _Reads, lot: _Lot) -> Reader:
    """The loads of a lot whose reads have begun, in the order of its steps."""
    lot_steps, content, futures = lot

    def get(begin: int, end: int, into: memoryview) -> None:
        for future in futures:
            future.result()
        into[: end - begin] = content[begin:end]

    begin = 0
    for step in lot_steps:
        end = begin + reads.bytes_of(step[2])
        yield reads.load(step, partial(get, begin, end))
        begin = end
