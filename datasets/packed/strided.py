"""The native way: every rank reads its records one by one, 32 of them in flight, in either of two ways.

By `threads`, 32 of them in `pread`; or announced, where one thread tells the system of 32 records before it
reads the first of them. Which is faster depends on cores and disk; a fair comparison takes the better one.
"""

import itertools
import time
from collections import deque
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor

from . import orders
from .counters import Tally
from .loads import Load, Reader, Stretch, steps
from .orders import Records
from .packed_file import Packed

READS_IN_FLIGHT = 32
STEPS_AHEAD = 2  # of the threads, so that reads stay in flight at the end of a step


def strided(
    packed: Packed, stretches: Iterable[Stretch], rank: int, tally: Tally, *, threads: bool = True
) -> Reader:
    """The records of `rank`, one by one."""
    wanted = (
        (stretch, step, orders.strided(stretch.epoch, rank, step)) for stretch, step in steps(stretches)
    )
    if not threads:
        for stretch, step, records in wanted:
            yield _load(stretch, step, _Announced(packed, records, tally))
        return
    with ThreadPoolExecutor(READS_IN_FLIGHT) as pool:
        started: deque[Load] = deque()
        for stretch, step, records in wanted:
            started.append(_load(stretch, step, _Threads(packed, records, tally, pool)))
            if len(started) > STEPS_AHEAD:
                yield started.popleft()
        yield from started


class _Announced:
    """The records of a step, read by whoever fills."""

    def __init__(self, packed: Packed, records: Records, tally: Tally) -> None:
        self._packed, self.records, self._tally = packed, records, tally

    def fill(self, into: memoryview) -> None:
        ends = self._packed.ends_in(self.records)
        views = [into[begin:end] for begin, end in itertools.pairwise([0, *ends])]
        began = time.perf_counter()
        self._packed.read_each(self.records.tolist(), views, announce=READS_IN_FLIGHT)
        self._tally.add(read_s=time.perf_counter() - began)
        _check(self._packed, self.records, into, self._tally)


class _Threads:
    """The records of a step, which threads read already, to memory of its own."""

    def __init__(self, packed: Packed, records: Records, tally: Tally, pool: ThreadPoolExecutor) -> None:
        self._packed, self.records, self._tally = packed, records, tally
        ends = packed.ends_in(records)
        self._content = memoryview(bytearray(ends[-1] if len(ends) else 0))
        self._numbers = records.tolist()
        self._views = [self._content[begin:end] for begin, end in itertools.pairwise([0, *ends])]
        workers = min(READS_IN_FLIGHT, len(records))
        self._parts = [pool.submit(self._read, worker) for worker in range(workers)]

    def fill(self, into: memoryview) -> None:
        for part in self._parts:
            part.result()
        into[: len(self._content)] = self._content
        _check(self._packed, self.records, into, self._tally)

    def _read(self, worker: int) -> None:
        began = time.perf_counter()
        self._packed.read_each(self._numbers[worker::READS_IN_FLIGHT], self._views[worker::READS_IN_FLIGHT])
        self._tally.add(read_s=time.perf_counter() - began)


def _load(stretch: Stretch, step: int, content: _Announced | _Threads) -> Load:
    records = content.records
    return Load(number=stretch.number, step=step, records=records, counts=(len(records),), fill=content.fill)


def _check(packed: Packed, records: Records, content: memoryview, tally: Tally) -> None:
    """Compare what was read with its checksums, and count it."""
    tally.asked(records, records + 1)
    began = time.perf_counter()
    packed.check(records, content)
    ends = packed.ends_in(records)
    size = ends[-1] if len(ends) else 0
    tally.add(requested_bytes=size, useful_bytes=size, checked_s=time.perf_counter() - began)
