"""While training pauses nothing is read and nothing announced, whatever the layout; then all of it is."""

import multiprocessing
import os
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import cast

import pytest

from daso_bench.datasets.packed import reading
from daso_bench.datasets.packed import strided as module
from daso_bench.datasets.packed.counters import Tally
from daso_bench.datasets.packed.feeding import Feeder, FeederGone, Member
from daso_bench.datasets.packed.loads import Reader, Stretch
from daso_bench.datasets.packed.orders import Epoch
from daso_bench.datasets.packed.packed_file import Packed
from daso_bench.datasets.packed.readers import block, chunked_shuffle, node_batch
from daso_bench.datasets.packed.slots import Geometry
from daso_bench.datasets.packed.strided import strided
from daso_bench.datasets.sampler import Sampler

LAYOUTS: dict[str, Callable[..., Reader]] = {
    "strided by threads": partial(strided, threads=True),
    "strided, announced": partial(strided, threads=False),
    "block": block,
    "node_batch": node_batch,
    "chunked_shuffle": partial(chunked_shuffle, seed=5, chunk_bytes=400, window_chunks=2),
}
BY_NODE = ("node_batch", "chunked_shuffle")
RECORDS, BATCH, EPOCHS, NODES = 900, 90, 2, (2, 1)
Held = tuple[Packed, Feeder, list[Member], "Disk"]


class Disk:
    """Counts what is asked of the system, and takes `read_s` for each read."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._lock = threading.Lock()
        self.read = self.announced = 0
        self.read_s = 0.02
        self._preadv, self._advise = os.preadv, os.posix_fadvise
        monkeypatch.setattr(os, "preadv", self._read)
        monkeypatch.setattr(os, "posix_fadvise", self._announce)

    def _read(self, descriptor: int, into: Sequence[memoryview], offset: int) -> int:
        time.sleep(self.read_s)
        got = self._preadv(descriptor, into, offset)
        with self._lock:
            self.read += got
        return got

    def _announce(self, descriptor: int, offset: int, size: int, advice: int) -> None:
        with self._lock:
            self.announced += size
        self._advise(descriptor, offset, size, advice)

    @property
    def asked(self) -> tuple[int, int]:
        return self.read, self.announced


@pytest.fixture
def held(make_packed: Callable[..., Path], monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Held]:
    """A feeder of small lots, announced reads and windows, one step of which is used; it is held."""
    monkeypatch.setattr(module, "LOT_BYTES", 3000)
    monkeypatch.setattr(module, "ANNOUNCED", 8)
    monkeypatch.setattr(reading, "READ_AHEAD_BYTES", 1000)

    def begun(layout: str) -> Held:
        packed = Packed(make_packed(RECORDS))
        disk = Disk(monkeypatch)
        epoch = Epoch.of(Sampler(RECORDS, BATCH, 3, 0), NODES)
        stretches = [Stretch(number=number, epoch=epoch) for number in range(EPOCHS)]
        tally = Tally()
        # On Windows the ends would be others.
        lines = [
            cast(tuple[Connection, Connection], multiprocessing.Pipe())
            for _ in range(NODES[0] if layout in BY_NODE else 1)
        ]
        reader = LAYOUTS[layout](packed, stretches, 0, tally)
        feeder = Feeder(packed, reader, [ours for ours, _ in lines], Geometry.of(packed, BATCH), tally)
        members = [Member(theirs) for _, theirs in lines]
        for member in members:
            next(member)
        feeder.hold(True)
        time.sleep(0.05)  # reads that were in work
        return packed, feeder, members, disk

    return begun


@pytest.mark.parametrize("layout", LAYOUTS)
def test_nothing_is_asked_of_the_system_while_training_pauses_and_all_of_it_afterwards(
    held: Callable[[str], Held], layout: str
) -> None:
    packed, feeder, members, disk = held(layout)
    for member in members:
        member.release()  # makes room for a further step
    before = disk.asked
    time.sleep(0.1)
    assert disk.asked == before
    assert disk.read < RECORDS * 12, "there is something left to be read"
    disk.read_s = 0.0
    feeder.hold(False)
    for _ in zip(*members, strict=True):
        pass
    for member in members:
        member.close()
    feeder.join()
    assert feeder.counters.requested_bytes == disk.read > before[0]
    packed.close()


@pytest.mark.parametrize("call", ["will_need", "read", "read_each"])
def test_calls_of_a_file_that_is_held_wait(make_packed: Callable[..., Path], call: str) -> None:
    with Packed(make_packed(RECORDS)) as packed, ThreadPoolExecutor(1) as pool:
        calls = {
            "will_need": partial(packed.will_need, 3, 1),
            "read": partial(packed.read, 3, 1, memoryview(bytearray(12))),
            "read_each": partial(packed.read_each, [3], [memoryview(bytearray(12))]),
        }
        packed.hold(True)
        waiting = pool.submit(calls[call])
        with pytest.raises(TimeoutError):
            waiting.result(0.05)
        packed.hold(False)
        waiting.result(20)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_feeder_that_is_held_can_be_closed(held: Callable[[str], Held], layout: str) -> None:
    packed, feeder, members, _ = held(layout)
    feeder.close()
    with pytest.raises(FeederGone):
        list(members[0])
    for member in members:
        member.close()
    packed.read(0, 1, memoryview(bytearray(12)))  # whoever reads next need not wait
    packed.close()


def test_a_member_that_leaves_is_noticed_though_threads_of_the_reader_are_held(
    make_packed: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = Disk(monkeypatch)
    ours, theirs = cast(tuple[Connection, Connection], multiprocessing.Pipe())
    with Packed(make_packed(RECORDS)) as packed:
        disk.read_s = 0.02
        epoch = Epoch(batch=BATCH, steps=10, full=(BATCH,), last=(BATCH,), ranks_of_nodes=(1,))
        tally = Tally()
        reader = strided(packed, [Stretch(number=0, epoch=epoch)], 0, tally, threads=True)
        feeder = Feeder(packed, reader, [ours], Geometry.of(packed, BATCH), tally)
        member = Member(theirs)
        next(member)
        while feeder.counters.useful_bytes < 2 * BATCH * 12:  # then it waits for the member
            time.sleep(0.001)
        feeder.hold(True)
        member.close()
        with pytest.raises(FeederGone, match="member 0 of the node has ended"):
            feeder.join()
