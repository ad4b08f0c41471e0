"""One by one, many in flight: what the two ways of `strided` ask of the system, and when."""

import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from daso_bench.datasets.packed import strided_reader
from daso_bench.datasets.packed.packed_file import Packed
from daso_bench.datasets.packed.readers import CounterTally
from daso_bench.datasets.packed.record_order import Epoch, Stretch
from daso_bench.datasets.packed.strided_reader import ANNOUNCED, READS_IN_FLIGHT, strided

MakePacked = Callable[..., Path]
RANKS, SHARE, STEPS, SIZE = 4, 8, 40, 12
OWN = [RANKS * turn + 1 for turn in range(SHARE * STEPS)]  # of rank 1


def stretch() -> Stretch:
    sizes = (SHARE,) * RANKS
    epoch = Epoch(batch=SHARE * RANKS, steps=STEPS, full=sizes, last=sizes, ranks_of_nodes=(RANKS,))
    return Stretch(number=0, epoch=epoch)


class Watched(Packed):
    """Notes what is announced and read, in that order."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.announced: list[int] = []
        self.ahead: list[int] = []  # at each read, announced records that are not read yet
        self.threads: set[int] = set()
        self.read_by_one_task: list[int] = []

    def will_need(self, first: int, count: int) -> None:
        assert count == 1
        self.announced.append(first)
        super().will_need(first, count)

    def read_each(
        self, records: Sequence[int], into: Sequence[memoryview], upcoming: Sequence[int] = ()
    ) -> None:
        self.threads.add(threading.get_ident())
        self.read_by_one_task.append(len(records))
        self.ahead.append(len(self.announced) - sum(self.read_by_one_task[:-1]))
        super().read_each(records, into, upcoming)


def contents(packed: Packed, *, threads: bool) -> list[bytes]:
    """What each step fills."""
    found = []
    for load in strided(packed, [stretch()], 1, CounterTally(), threads=threads):
        into = bytearray(SHARE * SIZE)
        load.fill(memoryview(into))
        found.append(bytes(into))
    return found


@pytest.mark.parametrize("lot_bytes", [1, 5 * SHARE * SIZE - 1, 2**20])
@pytest.mark.parametrize("threads", [True, False])
def test_every_step_has_the_bytes_of_its_records_however_steps_are_put_together(
    make_packed: MakePacked, monkeypatch: pytest.MonkeyPatch, threads: bool, lot_bytes: int
) -> None:
    monkeypatch.setattr(strided_reader, "LOT_BYTES", lot_bytes)
    path = make_packed(RANKS * SHARE * STEPS, SIZE)
    data = path.read_bytes()[4096:]
    with Packed(path) as packed:
        steps = contents(packed, threads=threads)
    assert b"".join(steps) == b"".join(data[record * SIZE : (record + 1) * SIZE] for record in OWN)


def test_announced_records_stay_as_many_from_step_to_step_and_none_is_announced_twice(
    make_packed: MakePacked,
) -> None:
    with Watched(make_packed(RANKS * SHARE * STEPS, SIZE)) as packed:
        contents(packed, threads=False)
    assert packed.announced == OWN
    full = STEPS - ANNOUNCED // SHARE  # steps after which that many records are still to come
    assert packed.ahead[:full] == [ANNOUNCED] * full


def test_the_first_step_waits_for_its_own_records_and_soon_a_thread_reads_many_in_one_task(
    make_packed: MakePacked,
) -> None:
    # Lots of 1, 2, 4, 8, 16 steps and the 9 that are left, each dealt to the threads.
    lots = [SHARE * steps for steps in (1, 2, 4, 8, 16, 9)]
    dealt = [-(-(lot - hand) // READS_IN_FLIGHT) for lot in lots for hand in range(READS_IN_FLIGHT)]
    with Watched(make_packed(RANKS * SHARE * STEPS, SIZE)) as packed:
        contents(packed, threads=True)
    assert sorted(packed.read_by_one_task) == sorted(count for count in dealt if count > 0)
    assert packed.announced == []


class Slow(Packed):
    """A disk that takes 20 ms for each record, whoever else reads."""

    def read_each(
        self, records: Sequence[int], into: Sequence[memoryview], upcoming: Sequence[int] = ()
    ) -> None:
        for record, view in zip(records, into, strict=True):
            time.sleep(0.02)
            super().read_each([record], [view])


def test_records_of_a_step_are_read_at_once_by_all_threads(make_packed: MakePacked) -> None:
    size = RANKS * SHARE
    epoch = Epoch(batch=size, steps=STEPS, full=(size,), last=(size,), ranks_of_nodes=(1,))
    with Slow(make_packed(size * STEPS, SIZE)) as packed:
        reader = strided(packed, [Stretch(number=0, epoch=epoch)], 0, CounterTally(), threads=True)
        began = time.monotonic()
        next(reader).fill(memoryview(bytearray(size * SIZE)))
        assert time.monotonic() - began < 0.2, "one after another they take 0.64 s"
        reader.close()


def test_a_step_as_large_as_a_lot_is_read_to_where_it_is_wanted(
    make_packed: MakePacked, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_lot(*_: object) -> None:
        raise AssertionError("memory beside that of the slot")

    monkeypatch.setattr(strided_reader, "LOT_BYTES", SHARE * SIZE)
    monkeypatch.setattr(strided_reader, "_begun", no_lot)
    with Packed(make_packed(RANKS * SHARE * STEPS, SIZE)) as packed:
        assert len(contents(packed, threads=True)) == STEPS


@pytest.mark.parametrize("threads", [True, False])
def test_bytes_that_were_read_are_counted_though_their_step_is_never_used(
    make_packed: MakePacked, threads: bool
) -> None:
    with Watched(make_packed(RANKS * SHARE * STEPS, SIZE)) as packed:
        tally = CounterTally()
        reader = strided(packed, [stretch()], 1, tally, threads=threads)
        next(reader).fill(memoryview(bytearray(SHARE * SIZE)))
        reader.close()
        counted, read = tally.counters(), sum(packed.read_by_one_task)
    assert read > SHARE or not threads
    assert (counted.reads, counted.requested_bytes) == (read, read * SIZE)
    assert (counted.useful_bytes, counted.jumps) == (SHARE * SIZE, SHARE)
