"""The `strided` reader: a rank reads its records one by one, many of them in flight, in either of two ways.

By `threads`, 32 of them in `pread`; or announced, where one thread tells the system of 128 records before it
reads the first of them. Which is faster depends on cores and disk; a fair comparison takes the better one.
Both keep their reads in flight from step to step, and neither has work per record but the read and its
checksum: a task of a thread, or a drained queue at the end of a small step, costs more than a small record.
"""

import itertools
import time
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from functools import partial

import numpy as np

from . import record_order
from .packed_file import Packed
from .reading import Load, Reader, Tally
from .record_order import Records, Stretch, steps

READS_IN_FLIGHT = 32
ANNOUNCED = 128  # records; 13 to 19 % faster than 32 on the disk of docs/packed.md
LOT_BYTES = 16 * 2**20
LOTS_AHEAD = 2  # so that reads stay in flight at the end of a lot


@dataclass(frozen=True, kw_only=True, eq=False)
class _Step:
    """The records of one step."""

    stretch: Stretch
    step: int
    records: Records


def strided(
    packed: Packed, stretches: Iterable[Stretch], rank: int, tally: Tally, *, threads: bool = True
) -> Reader:
    """The records of `rank`, one by one."""
    wanted = (
        _Step(stretch=stretch, step=step, records=record_order.strided(stretch.epoch, rank, step))
        for stretch, step in steps(stretches)
    )
    return _by_threads(packed, wanted, tally) if threads else _announced(packed, wanted, tally)


def _announced(packed: Packed, wanted: Iterator[_Step], tally: Tally) -> Reader:
    """While a step is read, the system is told of records of the steps that follow."""
    wanted, later = itertools.tee(wanted)
    queue = itertools.chain.from_iterable(step.records.tolist() for step in later)
    for record in itertools.islice(queue, ANNOUNCED):
        packed.will_need(record, 1)
    for step in wanted:
        upcoming = list(itertools.islice(queue, len(step.records)))
        yield _load(step, partial(_fill, packed, step.records, upcoming, tally))


def _fill(packed: Packed, records: Records, upcoming: list[int], tally: Tally, into: memoryview) -> None:
    _read(packed, records, _cut(packed, records, into), tally, upcoming)
    _given_out(packed, records, tally)


def _by_threads(packed: Packed, wanted: Iterator[_Step], tally: Tally) -> Reader:
    """Threads read lots of steps ahead, each thread every 32nd record of a lot."""
    with ThreadPoolExecutor(READS_IN_FLIGHT) as pool:
        started: deque[_Lot] = deque()
        try:
            for parts in _lots(packed, wanted):
                if _size(packed, parts[0].records) >= LOT_BYTES:
                    # Such a step needs no others beside it, and no memory but that of its slot.
                    yield from _given(started)
                    yield _load(parts[0], partial(_read_step, packed, parts[0].records, tally, pool))
                    continue
                started.append(_Lot(packed, parts, tally, pool))
                if len(started) > LOTS_AHEAD:
                    yield from started.popleft().loads()
            yield from _given(started)
        finally:
            pool.shutdown(cancel_futures=True)


def lots_bytes(step_bytes: int) -> int:
    """Memory of lots, at most, for steps of so many bytes."""
    return 0 if step_bytes >= LOT_BYTES else (LOTS_AHEAD + 1) * LOT_BYTES


def _given(started: "deque[_Lot]") -> Reader:
    """The steps of all lots that are started."""
    while started:
        yield from started.popleft().loads()


def _lots(packed: Packed, wanted: Iterator[_Step]) -> Iterator[list[_Step]]:
    """Steps in lots of at most `LOT_BYTES`, larger ones alone; the first has one step.

    Each has at most twice as many as the one before: a step waits for all of its lot.
    """
    lot: list[_Step] = []
    size, most = 0, 1
    for step in wanted:
        step_bytes = _size(packed, step.records)
        if lot and (len(lot) == most or size + step_bytes > LOT_BYTES):
            yield lot
            most, lot, size = 2 * len(lot), [], 0
        lot.append(step)
        size += step_bytes
    if lot:
        yield lot


class _Lot:
    """Some steps whose records threads read already, to memory of their own."""

    def __init__(self, packed: Packed, parts: list[_Step], tally: Tally, pool: ThreadPoolExecutor) -> None:
        self._packed, self._parts, self._tally = packed, parts, tally
        records = np.concatenate([part.records for part in parts])
        self._content = np.empty(_size(packed, records), dtype=np.uint8).data
        self._reads = _begun(packed, records, self._content, tally, pool)

    def loads(self) -> Reader:
        """The steps in their order."""
        begin = 0
        for part in self._parts:
            end = begin + _size(self._packed, part.records)
            yield _load(part, partial(self._give, part.records, begin, end))
            begin = end

    def _give(self, records: Records, begin: int, end: int, into: memoryview) -> None:
        for read in self._reads:
            read.result()
        into[: end - begin] = self._content[begin:end]
        _given_out(self._packed, records, self._tally)


def _read_step(
    packed: Packed, records: Records, tally: Tally, pool: ThreadPoolExecutor, into: memoryview
) -> None:
    reads = _begun(packed, records, into, tally, pool)
    wait(reads)  # nobody writes to `into` once this returns
    for read in reads:
        read.result()
    _given_out(packed, records, tally)


def _begun(
    packed: Packed, records: Records, content: memoryview, tally: Tally, pool: ThreadPoolExecutor
) -> list[Future[None]]:
    """The records are read to `content`, dealt to the threads: those of the first steps come first."""
    cut = _cut(packed, records, content)
    hands = range(min(READS_IN_FLIGHT, len(records)))
    return [
        pool.submit(_read, packed, records[hand::READS_IN_FLIGHT], cut[hand::READS_IN_FLIGHT], tally)
        for hand in hands
    ]


def _read(
    packed: Packed, records: Records, into: list[memoryview], tally: Tally, upcoming: Sequence[int] = ()
) -> None:
    """Read, count and check."""
    began = time.perf_counter()
    packed.read_each(records.tolist(), into, upcoming)
    read = time.perf_counter()
    size = _size(packed, records)
    tally.add(reads=len(records), requested_bytes=size, read_s=read - began)
    packed.check_each(records, into)
    tally.add(checked_s=time.perf_counter() - read)


def _load(wanted: _Step, fill: "partial[None]") -> Load:
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


def _given_out(packed: Packed, records: Records, tally: Tally) -> None:
    """Count what is used, and jumps: in the order of the steps, whichever thread read."""
    tally.jumped(records, records + 1)
    tally.add(useful_bytes=_size(packed, records))
