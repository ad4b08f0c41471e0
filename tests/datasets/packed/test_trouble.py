"""What the system, or a fault in the code, does to readers and writers is told with file and place."""

import errno
import multiprocessing
import os
import resource
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from pathlib import Path
from typing import cast

import numpy as np
import pytest

from daso_bench.datasets.packed import writer as writing
from daso_bench.datasets.packed.counters import Tally
from daso_bench.datasets.packed.feeding import Feeder, FeederGone, Member
from daso_bench.datasets.packed.format import Description
from daso_bench.datasets.packed.loads import Load, Stretch
from daso_bench.datasets.packed.orders import Epoch
from daso_bench.datasets.packed.packed_file import Packed
from daso_bench.datasets.packed.readers import block
from daso_bench.datasets.packed.slots import Geometry
from daso_bench.datasets.packed.writer import Writer
from daso_bench.datasets.sampler import Sampler

MakePacked = Callable[..., Path]


def no_disk(descriptor: int, into: object, offset: int) -> int:
    """`os.preadv` of a disk that fails."""
    raise OSError(errno.EIO, os.strerror(errno.EIO))


def test_a_disk_that_fails_is_told_with_the_file_and_the_byte(
    make_packed: MakePacked, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = make_packed(53)
    into = memoryview(bytearray(24))
    reads: list[Callable[[Packed], object]] = [
        lambda packed: packed.read(5, 2, into),
        lambda packed: packed.read_each([5, 6], [into[:12], into[12:]]),
    ]
    with Packed(path) as packed:
        monkeypatch.setattr(os, "preadv", no_disk)
        for read in reads:
            with pytest.raises(OSError, match=rf"at byte 4156: '{path}'$") as caught:
                read(packed)
            assert caught.value.errno == errno.EIO


def fed(packed: Packed, reader: Generator[Load, None, None]) -> None:
    """All parts of the only member."""
    ours, theirs = cast(tuple[Connection, Connection], multiprocessing.Pipe())
    with Feeder(packed, reader, [ours], Geometry.of(packed, 20), Tally()):
        member = Member(theirs)
        try:
            list(member)
        finally:
            member.close()


def test_members_hear_of_a_disk_that_fails_in_the_same_words(
    make_packed: MakePacked, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    path = make_packed(53)
    epoch = Epoch.of(Sampler(53, 9, 3, 0), (2, 1))
    with Packed(path) as packed:
        monkeypatch.setattr(os, "preadv", no_disk)
        with pytest.raises(FeederGone, match=rf"Input/output error at byte 4096: '{path}'$"):
            fed(packed, block(packed, [Stretch(number=0, epoch=epoch)], 0, Tally()))
    assert not caplog.records, "its words say all"


def test_a_fault_in_a_reader_is_told_by_its_kind_and_its_traceback_is_in_the_log(
    make_packed: MakePacked, caplog: pytest.LogCaptureFixture
) -> None:
    def at_fault(into: memoryview) -> None:
        raise KeyError(3)

    def reader() -> Generator[Load, None, None]:
        yield Load(number=0, step=0, records=np.array([1]), counts=(1,), fill=at_fault)

    told = r"^KeyError: 3 \(the log of the process that reads has the traceback\)$"
    with Packed(make_packed(53)) as packed, pytest.raises(FeederGone, match=told):
        fed(packed, reader())
    assert "the reader has failed" in caplog.text
    assert "in at_fault" in caplog.text


@contextmanager
def largest_file(size: int) -> Iterator[None]:
    """Files of this process grow to so many bytes, as on a disk that is full then."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.mark.parametrize("buffer_bytes", [16, 2**20], ids=["a record", "the end"])
def test_a_disk_that_is_full_is_told_with_the_file_and_nothing_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, buffer_bytes: int
) -> None:
    monkeypatch.setattr(writing, "BUFFER_BYTES", buffer_bytes)
    path = tmp_path / "some.packed"
    about = Description(name="some", classes=7, shape=(100,), encoding="uint8", made="counted in a test")

    def write() -> None:
        with largest_file(5000), Writer(path, about, record_bytes=100) as writer:
            for _ in range(20):
                writer.add(bytes(100), 0)

    with pytest.raises(OSError, match=rf"^\[Errno {errno.EFBIG}\] .*: '{path}'$"):
        write()
    assert not list(tmp_path.iterdir())
