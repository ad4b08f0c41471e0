"""The native way: every rank reads its records one by one, many of them in flight, in either of two ways.

By `threads`, 32 of them in `pread`; or announced, where one thread tells the system of 128 records before it
reads the first of them. Which is faster depends on cores and disk; a fair comparison takes the better one.
Both keep their reads in flight from step to step, and neither has work per record but the read and its
checksum: a task of a thread, or a drained queue at the end of a small step, costs more than a small record.
"""

import itertools
import time
from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial

import numpy as np

from . import orders
from .counters import Tally
from .loads import Load, Reader, Stretch, steps
from .orders import Records
from .packed_file import Packed

READS_IN_FLIGHT = 32
ANNOUNCED = 128  # records; 13 to 19 % faster than 32 on the disk of docs/packed.md
LOT_BYTES = 16 * 2**20
LOTS_AHEAD = 2  # so that reads stay in flight at the end of a lot


@dataclass(frozen=True, kw_only=True, eq=False)
class _Wanted:
    """The records of one step."""

    stretch: Stretch
    step: int
    records: Records


def strided(
    packed: Packed, stretches: Iterable[Stretch], rank: int, tally: Tally, *, threads: bool = True
) -> Reader:
    """The records of `rank`, one by one."""
    wanted = (
        _Wanted(stretch=stretch, step=step, records=orders.strided(stretch.epoch, rank, step))
        for stretch, step in steps(stretches)
    )
    return _by_threads(packed, wanted, tally) if threads else _announced(packed, wanted, tally)


def _announced(packed: Packed, wanted: Iterator[_Wanted], tally: Tally) -> Reader:
    """While a step is read, the system is told of records of the steps that follow."""
    wanted, later = itertools.tee(wanted)
    queue = itertools.chain.from_iterable(one.records.tolist() for one in later)
    for record in itertools.islice(queue, ANNOUNCED):
        packed.will_need(record, 1)
    for one in wanted:
        upcoming = list(itertools.islice(queue, len(one.records)))
        yield _load(one, partial(_fill, packed, one.records, upcoming, tally))


def _fill(packed: Packed, records: Records, upcoming: list[int], tally: Tally, into: memoryview) -> None:
    began = time.perf_counter()
    packed.read_each(records.tolist(), _cut(packed, records, into), upcoming)
    tally.add(read_s=time.perf_counter() - began)
    _check(packed, records, into, tally)
    _count(packed, records, tally)


def _by_threads(packed: Packed, wanted: Iterator[_Wanted], tally: Tally) -> Reader:
    """Threads read lots of steps ahead."""
    with ThreadPoolExecutor(READS_IN_FLIGHT) as pool:
        started: deque[_Lot] = deque()
        for parts in _lots(packed, wanted):
            started.append(_Lot(packed, parts, tally, pool))
            if len(started) > LOTS_AHEAD:
                yield from started.popleft().loads()
        for lot in started:
            yield from lot.loads()


def _lots(packed: Packed, wanted: Iterator[_Wanted]) -> Iterator[list[_Wanted]]:
    """Steps in lots of about `LOT_BYTES`."""
    lot: list[_Wanted] = []
    size = 0
    for one in wanted:
        lot.append(one)
        size += _size(packed, one.records)
        if size >= LOT_BYTES:
            yield lot
            lot, size = [], 0
    if lot:
        yield lot


class _Lot:
    """Some steps whose records threads read already, to memory of their own, each thread a piece of them."""

    def __init__(self, packed: Packed, parts: list[_Wanted], tally: Tally, pool: ThreadPoolExecutor) -> None:
        self._packed, self._parts, self._tally = packed, parts, tally
        records = np.concatenate([part.records for part in parts])
        self._content = np.empty(_size(packed, records), dtype=np.uint8).data
        self._pieces: list[Future[None]] = []
        begin = 0
        for piece in np.array_split(records, READS_IN_FLIGHT):
            end = begin + _size(packed, piece)
            self._pieces.append(pool.submit(self._read, piece, self._content[begin:end]))
            begin = end

    def loads(self) -> Reader:
        """The steps in their order."""
        begin = 0
        for part in self._parts:
            end = begin + _size(self._packed, part.records)
            yield _load(part, partial(self._give, part.records, begin, end))
            begin = end

    def _read(self, records: Records, into: memoryview) -> None:
        began = time.perf_counter()
        self._packed.read_each(records.tolist(), _cut(self._packed, records, into))
        self._tally.add(read_s=time.perf_counter() - began)
        _check(self._packed, records, into, self._tally)

    def _give(self, records: Records, begin: int, end: int, into: memoryview) -> None:
        for piece in self._pieces:
            piece.result()
        into[: end - begin] = self._content[begin:end]
        _count(self._packed, records, self._tally)


def _load(wanted: _Wanted, fill: "partial[None]") -> Load:
    records = wanted.records
    return Load(
        number=wanted.stretch.number, step=wanted.step, records=records, counts=(len(records),), fill=fill
    )


def _size(packed: Packed, records: Records) -> int:
    ends = packed.ends_in(records)
    return ends[-1] if len(ends) else 0


def _cut(packed: Packed, records: Records, content: memoryview) -> list[memoryview]:
    """The memory of each record."""
    return [content[begin:end] for begin, end in itertools.pairwise([0, *packed.ends_in(records)])]


def _check(packed: Packed, records: Records, content: memoryview, tally: Tally) -> None:
    began = time.perf_counter()
    packed.check(records, content)
    tally.add(checked_s=time.perf_counter() - began)


def _count(packed: Packed, records: Records, tally: Tally) -> None:
    """Of reads that were made: in the order of the steps, whichever thread made them."""
    tally.asked(records, records + 1)
    size = _size(packed, records)
    tally.add(requested_bytes=size, useful_bytes=size)
