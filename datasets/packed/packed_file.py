"""Reading a packed file, with every checksum compared, and writing one, whole or not at all."""

import itertools
import os
import threading
import zlib
from array import array
from collections.abc import Iterable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

import numpy as np
from numpy.typing import NDArray

from .packed_format import (
    ALIGNMENT,
    CHECKSUM_BYTES,
    END_BYTES,
    HEADER_BYTES,
    INDEX_ALIGNMENT,
    LABEL_BYTES,
    MAGIC,
    DamagedFile,
    Description,
    Header,
    aligned,
    located,
    parse,
)

START_BYTES = 64 * 2**10  # usually enough for header and description
READ_BYTES = 4 * 2**20  # at most in one call, so that `hold` takes effect soon
BUFFER_BYTES = 4 * 2**20  # of a writer


class Packed:
    """A packed file, open for reading by any number of threads.

    labels: int64 [n]. The index is in memory: 12 bytes a record, 20 where sizes differ.
    random_access: the system does not read ahead by itself.

    Raises DamagedFile unless the file is whole and its header and index are correct.
    """

    def __init__(self, path: Path, *, random_access: bool = False) -> None:
        self.path = path
        self._open = threading.Event()
        self._open.set()
        self._descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            self._header, self.description = self._start()
            self._load_index()
        except BaseException:
            self.close()
            raise
        if random_access and hasattr(os, "posix_fadvise"):  # macOS has no such advice
            os.posix_fadvise(self._descriptor, 0, 0, os.POSIX_FADV_RANDOM)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __len__(self) -> int:
        return self._header.records

    @property
    def record_bytes(self) -> int | None:
        """Size of every record, None where sizes differ."""
        return self._header.record_bytes or None

    def close(self) -> None:
        """Close the file; a second time does nothing."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def start_of(self, record: int) -> int:
        """The first byte of `record` in the data; of `len(self)`: the end of the last record."""
        return record * self._header.record_bytes if self._starts is None else int(self._starts[record])

    def size_of(self, first: int, count: int) -> int:
        """Bytes of the records [first, first + count)."""
        return self.start_of(first + count) - self.start_of(first)

    def starts(self) -> NDArray[np.int64]:
        """The first byte of each record in the data, and the end of the last: int64 [n + 1]."""
        if self._starts is not None:
            return self._starts
        return np.arange(len(self) + 1, dtype=np.int64) * self._header.record_bytes

    def hold(self, on: bool) -> None:
        """Make all reads and announcements that have not begun wait, until called with False."""
        if on:
            self._open.clear()
        else:
            self._open.set()

    def wait(self) -> None:
        """Return once the file is not held."""
        self._open.wait()

    def will_need(self, first: int, count: int) -> None:
        """Announce to the system that these records are read soon; it begins to read them at once.

        Does not block, unless the disk's queue is full.
        """
        self._open.wait()
        if count and hasattr(os, "posix_fadvise"):  # 0 bytes would mean the whole file
            offset = self._header.data_offset + self.start_of(first)
            os.posix_fadvise(self._descriptor, offset, self.size_of(first, count), os.POSIX_FADV_WILLNEED)

    def read(self, first: int, count: int, into: memoryview) -> int:
        """Read the records [first, first + count) to the beginning of `into`, in one piece.

        Returns the number of bytes. Raises IndexError: no such records; DamagedFile: the file is too short.
        """
        if not 0 <= first <= first + count <= len(self):
            raise IndexError(f"{self.path}: records {first} to {first + count}: there are {len(self)}")
        size, offset = self.size_of(first, count), self._header.data_offset + self.start_of(first)
        self._read_at(offset, into[:size])
        return size

    def read_each(
        self, records: Sequence[int], into: Sequence[memoryview], upcoming: Sequence[int] = ()
    ) -> None:
        """Read single records, each to memory of its size, in a loop with little overhead.

        upcoming: at most as many records; before each read, one of them is announced to the system.
        Raises DamagedFile as `read` does.
        """
        begin, preadv, descriptor = self._header.data_offset, os.preadv, self._descriptor
        may_read = self._open.is_set
        offsets = [begin + self.start_of(record) for record in records]
        for offset, view, later in itertools.zip_longest(offsets, into, upcoming):
            if later is not None:
                self.will_need(later, 1)
            if not may_read():
                self._open.wait()
            try:
                got = preadv(descriptor, (view,), offset)
            except OSError as error:
                raise located(error, self.path, offset) from error
            if got != len(view):
                self._read_at(offset, view)

    def _read_at(self, offset: int, into: memoryview) -> None:
        done = 0
        while done < len(into):  # the system may return less than was requested
            self._open.wait()
            try:
                got = os.preadv(self._descriptor, [into[done : done + READ_BYTES]], offset + done)
            except OSError as error:
                raise located(error, self.path, offset + done) from error
            if got == 0:
                raise DamagedFile(self.path, "cut short while it is read", offset=offset + done)
            done += got

    def check(self, records: NDArray[np.int64], content: memoryview) -> None:
        """Compare the records in `content`, one after another, with their checksums.

        Raises DamagedFile that names the first wrong one.
        """
        ends = itertools.pairwise(itertools.chain((0,), self.ends_in(records)))
        self.check_each(records, (content[begin:end] for begin, end in ends))

    def check_each(self, records: NDArray[np.int64], contents: Iterable[memoryview]) -> None:
        """As `check`, for records at any places in memory."""
        crc32 = zlib.crc32
        for number, (content, checksum) in enumerate(
            zip(contents, self._checksums[records].tolist(), strict=True)
        ):
            if crc32(content) != checksum:
                record = int(records[number])
                offset = self._header.data_offset + self.start_of(record)
                reason = "checksum is wrong; make the file again"
                raise DamagedFile(self.path, reason, record=record, offset=offset)

    def ends_in(self, records: NDArray[np.int64]) -> Sequence[int]:
        """The end of each of `records`, in bytes, if they lie one after another."""
        size = self._header.record_bytes
        if self._starts is None:
            return range(size, size * len(records) + 1, size)
        return np.cumsum(self._starts[records + 1] - self._starts[records]).tolist()

    def _start(self) -> tuple[Header, Description]:
        """Header and description, from as many bytes as they need."""
        file_bytes = os.fstat(self._descriptor).st_size
        start = os.pread(self._descriptor, START_BYTES, 0)
        needed = HEADER_BYTES + int.from_bytes(start[12:16], "little")
        if start.startswith(MAGIC) and len(start) < needed <= file_bytes:
            start = os.pread(self._descriptor, needed, 0)
        return parse(self.path, start, file_bytes)

    def _load_index(self) -> None:
        header, n = self._header, self._header.records
        index = np.empty(header.index_bytes, dtype=np.uint8)
        # From the open file: another file may have its name by now.
        self._read_at(header.index_offset, index.data)
        if zlib.crc32(index.data) != header.index_crc:
            raise DamagedFile(
                self.path, "checksum of the index is wrong; make the file again", offset=header.index_offset
            )
        cut = np.cumsum([LABEL_BYTES * n, 0 if header.record_bytes else END_BYTES * n, CHECKSUM_BYTES * n])
        labels, ends, checksums, _ = np.split(index, cut.tolist())
        self.labels = labels.view("<i8").astype(np.int64, copy=False)
        self._checksums = checksums.view("<u4")
        self._starts: NDArray[np.int64] | None = None
        if not header.record_bytes:
            self._starts = np.concatenate([[0], ends.view("<u8").astype(np.int64)])


class Writer:
    """A context manager that writes `path`: whole at the end of the block, or not at all if it raises.

    The records go to a temporary file in the same folder; 12 bytes of index per record (20 if sizes differ)
    stay in memory. record_bytes: the size of all records, None if sizes differ.
    Raises ValueError: a record of another size, an empty record, a label that is no class, no records;
    OSError that names the file.
    """

    def __init__(self, path: Path, description: Description, *, record_bytes: int | None = None) -> None:
        if record_bytes is not None and record_bytes < 1:
            raise ValueError(f"record_bytes={record_bytes}: must be >= 1, or None where sizes differ")
        self._path, self._description = path, description
        self._partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
        self._record_bytes = record_bytes
        self._labels, self._ends, self._checksums = array("q"), array("Q"), array("I")
        self._about = description.to_bytes()
        self._begin = aligned(HEADER_BYTES + len(self._about), ALIGNMENT)
        self._bytes = 0

    def __enter__(self) -> Self:
        self._file = open(self._partial, "wb", buffering=BUFFER_BYTES)
        self._file.seek(self._begin)
        return self

    def add(self, record: bytes | bytearray | memoryview, label: int) -> None:
        """Append a record."""
        number, size = len(self._labels), memoryview(record).nbytes
        if size != self._record_bytes and (self._record_bytes is not None or size == 0):
            allowed = f"{self._record_bytes} bytes" if self._record_bytes else "at least one byte"
            raise ValueError(f"{self._path}: record {number} has {size} bytes: must be {allowed}")
        if not 0 <= label < self._description.classes:
            highest = self._description.classes - 1
            raise ValueError(f"{self._path}: record {number} has label {label}: must be 0 to {highest}")
        try:
            self._file.write(record)
        except OSError as error:
            raise located(error, self._path) from error
        self._bytes += size
        self._labels.append(label)
        self._checksums.append(zlib.crc32(record))
        if self._record_bytes is None:
            self._ends.append(self._bytes)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            with self._file:
                if error is None:
                    self._finish()
            if error is None:
                os.replace(self._partial, self._path)
                _flush_folder(self._path.parent)
        except OSError as failure:
            raise located(failure, self._path) from failure
        finally:
            self._partial.unlink(missing_ok=True)

    def _finish(self) -> None:
        """Write the index after the records and the header before them, and flush all to the disk."""
        if not self._labels:
            raise ValueError(f"{self._path}: no record was added")
        columns = [np.array(self._labels, dtype="<i8"), np.array(self._checksums, dtype="<u4")]
        if self._record_bytes is None:
            columns.insert(1, np.array(self._ends, dtype="<u8"))
        index = b"".join(column.tobytes() for column in columns)
        header = Header(
            description_bytes=len(self._about),
            records=len(self._labels),
            record_bytes=self._record_bytes or 0,
            data_offset=self._begin,
            index_offset=aligned(self._begin + self._bytes, INDEX_ALIGNMENT),
            index_crc=zlib.crc32(index),
        )
        self._file.seek(header.index_offset)
        self._file.write(index)
        self._file.seek(0)
        self._file.write(header.to_bytes(self._about) + self._about)
        self._file.flush()
        os.fsync(self._file.fileno())


def _flush_folder(folder: Path) -> None:
    """Flush the folder, so that the new name is on the disk."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
