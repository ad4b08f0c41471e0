"""The feeder and its members: every crash ends the waiting, a pause holds all reads, errors have words."""

import errno
import gc
import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable, Generator, Sequence
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import cast

import numpy as np
import pytest

from daso_bench.datasets.packed import readers
from daso_bench.datasets.packed.feeder import Feeder, FeederGone, Geometry, Member
from daso_bench.datasets.packed.packed_file import Packed
from daso_bench.datasets.packed.readers import (
    CounterTally,
    Load,
    Reader,
    block,
    chunked_shuffle,
    node_batch,
    strided,
)
from daso_bench.datasets.packed.record_order import Epoch, EpochSlice
from daso_bench.datasets.sampler import Sampler

MakePacked = Callable[..., Path]


def pipe() -> tuple[Connection, Connection]:
    """The two ends of a connection; on Windows they would be others."""
    return cast(tuple[Connection, Connection], multiprocessing.Pipe())


def one_epoch() -> list[EpochSlice]:
    """53 records in batches of 9, on nodes of 2 and 1 ranks."""
    return [EpochSlice(number=0, epoch=Epoch.of(Sampler(53, 9, 3, 0), (2, 1)))]


def feed_and_hang(path: Path, connections: list[Connection]) -> None:
    """A process with the feeder of node 0."""
    with Packed(path) as packed:
        tally = CounterTally()
        reader = node_batch(packed, one_epoch(), 0, tally)
        Feeder(packed, reader, connections, Geometry.of(packed, 20), tally).join()


def test_a_feeder_that_is_killed_ends_the_waiting_of_its_members_and_leaves_nothing(
    make_packed: MakePacked,
) -> None:
    pipes = [pipe() for _ in range(2)]
    before = set(os.listdir("/dev/shm")) if os.path.isdir("/dev/shm") else set()
    context = multiprocessing.get_context("spawn")
    feeder = context.Process(target=feed_and_hang, args=(make_packed(53), [ours for ours, _ in pipes]))
    feeder.start()
    try:
        for ours, _ in pipes:
            ours.close()
        members = [Member(theirs) for _, theirs in pipes]
        first = [next(member) for member in members]
        assert feeder.pid is not None
        os.kill(feeder.pid, signal.SIGKILL)
        feeder.join()
        assert first[0].records.tolist() == [0, 1, 2]  # what a member has stays readable
        with pytest.raises(FeederGone, match="has ended"):
            list(members[0])  # steps that were ready before are still given out
    finally:
        feeder.kill()
        feeder.join()
    if os.path.isdir("/dev/shm"):
        assert not {name for name in set(os.listdir("/dev/shm")) - before if "daso-bench-reader" in name}


def test_a_member_that_leaves_early_ends_the_others_waiting(make_packed: MakePacked) -> None:
    pipes = [pipe() for _ in range(2)]
    with Packed(make_packed(53)) as packed:
        tally = CounterTally()
        reader = node_batch(packed, one_epoch(), 0, tally)
        with Feeder(packed, reader, [ours for ours, _ in pipes], Geometry.of(packed, 20), tally) as feeder:
            stays, leaves = (Member(theirs) for _, theirs in pipes)
            next(stays)
            next(leaves)
            leaves.close()
            with pytest.raises(FeederGone, match="member 1 of the node has ended after 0 steps"):
                list(stays)
            with pytest.raises(FeederGone):
                feeder.join()


@pytest.mark.parametrize("how", ["all done", "closed early", "a member left"])
def test_an_ended_feeder_holds_no_descriptor_though_it_is_kept(make_packed: MakePacked, how: str) -> None:
    path = make_packed(53)
    gc.collect()  # what tests before this one have left is closed now, not in the middle
    before = sorted(os.listdir("/proc/self/fd"))
    ours, theirs = pipe()
    with Packed(path) as packed:
        tally = CounterTally()
        reader = block(packed, one_epoch(), 0, tally)
        feeder = Feeder(packed, reader, [ours], Geometry.of(packed, 20), tally)
        member = Member(theirs)
        if how == "all done":
            assert len(list(member)) > 1
        member.close()
        if how == "closed early":
            feeder.close()
        elif how == "a member left":
            with pytest.raises(FeederGone, match="member 0 of the node has ended"):
                feeder.join()
        else:
            feeder.join()
        feeder.close()  # a second time does nothing
    del member
    assert sorted(os.listdir("/proc/self/fd")) == before
    assert feeder.counters.reads > 0


def no_disk(descriptor: int, into: object, offset: int) -> int:
    """`os.preadv` of a disk that fails."""
    raise OSError(errno.EIO, os.strerror(errno.EIO))


def fed(packed: Packed, reader: Generator[Load, None, None]) -> None:
    """All parts of the only member."""
    ours, theirs = pipe()
    with Feeder(packed, reader, [ours], Geometry.of(packed, 20), CounterTally()):
        member = Member(theirs)
        try:
            list(member)
        finally:
            member.close()


def test_members_hear_of_a_disk_that_fails_in_the_same_words_and_of_a_fault_by_its_kind(
    make_packed: MakePacked, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    path = make_packed(53)
    with Packed(path) as packed, monkeypatch.context() as patch:
        patch.setattr(os, "preadv", no_disk)
        with pytest.raises(FeederGone, match=rf"Input/output error at byte 0: '{path}'$"):
            fed(packed, block(packed, one_epoch(), 0, CounterTally()))
    assert not caplog.records, "its words say all"

    def at_fault(into: memoryview) -> None:
        raise KeyError(3)

    def reader() -> Generator[Load, None, None]:
        yield Load(number=0, step=0, records=np.array([1]), counts=(1,), fill=at_fault)

    message = r"^KeyError: 3 \(the log of the process that reads has the traceback\)$"
    with Packed(path) as packed, pytest.raises(FeederGone, match=message):
        fed(packed, reader())
    assert "the reader has failed" in caplog.text
    assert "in at_fault" in caplog.text


LAYOUTS: dict[str, Callable[..., Reader]] = {
    "strided": strided,
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
def held(make_packed: MakePacked, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Held]:
    """A feeder of small lots, announced reads and windows, one step of which is used; it is held."""
    monkeypatch.setattr(readers, "ANNOUNCED", 8)
    monkeypatch.setattr(readers, "READ_AHEAD_BYTES", 1000)

    def begun(layout: str) -> Held:
        packed = Packed(make_packed(RECORDS))
        disk = Disk(monkeypatch)
        epoch = Epoch.of(Sampler(RECORDS, BATCH, 3, 0), NODES)
        slices = [EpochSlice(number=number, epoch=epoch) for number in range(EPOCHS)]
        tally = CounterTally()
        pipes = [pipe() for _ in range(NODES[0] if layout in BY_NODE else 1)]
        reader = LAYOUTS[layout](packed, slices, 0, tally)
        feeder = Feeder(packed, reader, [ours for ours, _ in pipes], Geometry.of(packed, BATCH), tally)
        members = [Member(theirs) for _, theirs in pipes]
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
