"""What is written is read; each way in which a file or its disk can fail is told with file and place."""

import errno
import io
import json
import os
import resource
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from daso_bench.datasets.atomic_files import BadFile
from daso_bench.datasets.packed import packed_file
from daso_bench.datasets.packed.packed_file import Description, Packed, writing

MakePacked = Callable[..., Path]
DESCRIPTION = Description(name="some", classes=7, shape=(3, 4), encoding="uint8", made="counted in a test")


def read(packed: Packed, first: int, count: int) -> bytes:
    into = bytearray(packed.size_of(first, count))
    assert packed.read(first, count, memoryview(into)) == len(into)
    packed.check(np.arange(first, first + count), memoryview(into))
    return bytes(into)


@settings(deadline=None)
@given(
    records=st.lists(st.binary(min_size=1, max_size=40), min_size=1, max_size=30),
    cut=st.tuples(st.integers(0, 30), st.integers(0, 30)),
)
def test_any_run_of_records_of_any_size_comes_back(
    tmp_path_factory: pytest.TempPathFactory, records: list[bytes], cut: tuple[int, int]
) -> None:
    path = tmp_path_factory.mktemp("any") / "set.packed"
    with writing(path, DESCRIPTION) as add:
        for number, record in enumerate(records):
            add(record, number % 7)
    first, end = sorted(min(place, len(records)) for place in cut)
    with Packed(path) as packed:
        assert len(packed) == len(records)
        assert packed.labels.tolist() == [number % 7 for number in range(len(records))]
        assert packed.record_bytes is None
        assert read(packed, first, end - first) == b"".join(records[first:end])
        assert np.diff(packed.starts()).tolist() == [len(record) for record in records]


def test_records_of_one_size_need_no_ends(make_packed: MakePacked) -> None:
    path = make_packed(5, 4096)
    with Packed(path) as packed:
        assert packed.record_bytes == 4096
        assert packed.description == DESCRIPTION
        assert read(packed, 3, 2) == path.read_bytes()[4096 * 3 : 4096 * 5]
        assert packed.starts().tolist() == [4096 * place for place in range(6)]


def test_the_bytes_are_pinned(tmp_path: Path) -> None:
    """Changing them makes every file of others unreadable."""
    path = tmp_path / "set.packed"
    with writing(path, DESCRIPTION, record_bytes=3) as add:
        add(b"abc", 1)
        add(b"xyz", 6)
    content = path.read_bytes()
    assert content[:6] == b"abcxyz"
    assert content[-16:] == (len(content) - 6 - 16).to_bytes(8, "little") + b"DASOPACK"
    with np.load(io.BytesIO(content[6:-16])) as index:
        assert index["labels"].tolist() == [1, 6]
        assert index["checksums"].tolist() == [zlib.crc32(b"abc"), zlib.crc32(b"xyz")]
        assert json.loads(index["about"].tobytes()) == {
            **asdict(DESCRIPTION),
            "shape": [3, 4],
            "record_bytes": 3,
        }


def flipped(content: bytes, place: int) -> bytes:
    return content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :]


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda content: b"", "set.packed: is no packed file, or cut short; make it again"),
        (lambda content: b"<html>", "is no packed file"),
        (lambda content: content[:-1], "is no packed file, or cut short"),
        (lambda content: content[1:], "69 bytes of records where 70 belong"),
        (lambda content: flipped(content, content.index(b"uint8")), "byte 70: the index is damaged"),
        (lambda content: b"\xff" * 15 + b"DASOPACK", "is no packed file"),
    ],
    ids=["empty", "foreign", "no end", "a byte less", "index", "absurd end"],
)
def test_a_damaged_file_is_named_with_its_place(
    tmp_path: Path, make_packed: MakePacked, damage: Callable[[bytes], bytes], message: str
) -> None:
    path = tmp_path / "set.packed"
    path.write_bytes(damage(make_packed(5, 14).read_bytes()))
    with pytest.raises(BadFile, match=message):
        Packed(path)


@pytest.mark.parametrize(
    ("record", "label", "message"),
    [
        (b"abcd", 0, "record 1 has 4 bytes: must be 3 bytes"),
        (b"abc", 7, "record 1 has label 7: must be 0 to 6"),
        (b"abc", -1, "record 1 has label -1"),
    ],
)
def test_a_record_that_does_not_fit_is_refused_and_leaves_no_file(
    tmp_path: Path, record: bytes, label: int, message: str
) -> None:
    def write() -> None:
        with writing(tmp_path / "set.packed", DESCRIPTION, record_bytes=3) as add:
            add(b"abc", 0)
            add(record, label)

    with pytest.raises(ValueError, match=message):
        write()
    assert list(tmp_path.iterdir()) == []


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
            with pytest.raises(OSError, match=rf"at byte 60: '{path}'$") as caught:
                read(packed)
            assert caught.value.errno == errno.EIO


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
    monkeypatch.setattr(packed_file, "BUFFER_BYTES", buffer_bytes)
    path = tmp_path / "some.packed"

    def write() -> None:
        with largest_file(900), writing(path, DESCRIPTION, record_bytes=100) as add:
            for _ in range(20):
                add(bytes(100), 0)

    with pytest.raises(OSError, match=rf"^\[Errno {errno.EFBIG}\] .*: '{path}'$"):
        write()
    assert not list(tmp_path.iterdir())
