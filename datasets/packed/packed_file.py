"""A packed file: its format; reading it, with every checksum compared; writing it, whole or not at all.

    from byte 0   records, one after another without gaps
    then          index, a NumPy archive (.npz): labels int64 [n]; checksums uint32 [n], CRC-32 of each
                  record; ends int64 [n], where records end, only where sizes differ; about, JSON: see
                  `Description`, and record_bytes, the size of every record, null where sizes differ
    last 16       bytes of the index, uint64, little-endian, and `DASOPACK`

The index comes last, so that a writer need not know how many records there will be. The archive has checksums
of its own.
"""

import io
import itertools
import json
import os
import threading
import zipfile
import zlib
from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from ..atomic_files import BadFile, replacing

MAGIC = b"DASOPACK"
END_BYTES = 16
READ_BYTES = 4 * 2**20  # at most in one call, so that `hold` takes effect soon
BUFFER_BYTES = 4 * 2**20  # of a writer
# Errors of zipfile, NumPy and json for a damaged index.
_DAMAGE = (ValueError, KeyError, TypeError, EOFError, RuntimeError, OSError, zipfile.BadZipFile)


def _damaged(path: Path, reason: str, *, record: int | None = None, offset: int | None = None) -> BadFile:
    """The error of a packed file that cannot be used: it names the file, the record, the byte, the reason."""
    places = (("record", record), ("byte", offset))
    where = ", ".join(f"{name} {number}" for name, number in places if number is not None)
    return BadFile(f"{path}: {where + ': ' if where else ''}{reason}")


def located(error: OSError, path: Path, offset: int | None = None) -> OSError:
    """The system's error with the file and byte at which it occurred, unless it names a file already."""
    if error.errno is None or error.filename is not None:
        return error
    where = "" if offset is None else f" at byte {offset}"
    return OSError(error.errno, f"{error.strerror}{where}", str(path))


@dataclass(frozen=True, kw_only=True)
class Description:
    """The description of a packed file.

    name: of the data set; classes: labels are below it; shape: of one sample; encoding: of a record, such as
    `uint8`, `float32` or `jpeg`; made: how the file was made, in words, so that it can be made again;
    source: a digest of the samples in the file's order; shuffle_seed: of that order
    (`record_order.shuffled`), None for that of the data set.
    """

    name: str
    classes: int
    shape: tuple[int, ...]
    encoding: str
    made: str
    source: str = ""
    shuffle_seed: int | None = None


class Packed:
    """A packed file, open for reading by any number of threads.

    labels: int64 [n]. The index is in memory: 12 bytes a record, 20 where sizes differ.
    record_bytes: size of every record, None where sizes differ.
    random_access: the system does not read ahead by itself.

    Raises BadFile unless the file is whole and its index is correct.
    """

    def __init__(self, path: Path, *, random_access: bool = False) -> None:
        self.path = path
        self._open = threading.Event()
        self._open.set()
        self._descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
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
        return len(self.labels)

    def close(self) -> None:
        """Close the file; a second time does nothing."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def start_of(self, record: int) -> int:
        """The first byte of `record` in the data; of `len(self)`: the end of the last record."""
        return record * (self.record_bytes or 0) if self._starts is None else int(self._starts[record])

    def size_of(self, first: int, count: int) -> int:
        """Bytes of the records [first, first + count)."""
        return self.start_of(first + count) - self.start_of(first)

    def starts(self) -> NDArray[np.int64]:
        """The first byte of each record in the data, and the end of the last: int64 [n + 1]."""
        if self._starts is not None:
            return self._starts
        return np.arange(len(self) + 1, dtype=np.int64) * (self.record_bytes or 0)

    def hold(self, on: bool) -> None:
        """Make all reads and announcements that have not begun wait, until called with False."""
        if on:
            self._open.clear()
        else:
            self._open.set()

    def wait(self) -> None:
        self._open.wait()

    def will_need(self, first: int, count: int) -> None:
        """Announce to the system that these records are read soon; it begins to read them at once.

        Does not block, unless the disk's queue is full.
        """
        self._open.wait()
        if count and hasattr(os, "posix_fadvise"):  # 0 bytes would mean the whole file
            size = self.size_of(first, count)
            os.posix_fadvise(self._descriptor, self.start_of(first), size, os.POSIX_FADV_WILLNEED)

    def read(self, first: int, count: int, into: memoryview) -> int:
        """Read the records [first, first + count) to the beginning of `into`, in one piece.

        Returns the number of bytes. Raises IndexError: no such records; BadFile: the file is too short.
        """
        if not 0 <= first <= first + count <= len(self):
            raise IndexError(f"{self.path}: records {first} to {first + count}: there are {len(self)}")
        size = self.size_of(first, count)
        self._read_at(self.start_of(first), into[:size])
        return size

    def read_each(
        self, records: Sequence[int], into: Sequence[memoryview], upcoming: Sequence[int] = ()
    ) -> None:
        """Read single records, each to memory of its size, in a loop with little overhead.

        upcoming: at most as many records; before each read, one of them is announced to the system.
        Raises BadFile as `read` does.
        """
        preadv, descriptor = os.preadv, self._descriptor
        may_read = self._open.is_set
        offsets = map(self.start_of, records)
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
                raise _damaged(self.path, "cut short while it is read", offset=offset + done)
            done += got

    def check(self, records: NDArray[np.int64], content: memoryview) -> None:
        """Compare the records in `content`, one after another, with their checksums.

        Raises BadFile that names the first wrong one.
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
                reason = "checksum is wrong; make the file again"
                raise _damaged(self.path, reason, record=record, offset=self.start_of(record))

    def ends_in(self, records: NDArray[np.int64]) -> Sequence[int]:
        """The end of each of `records`, in bytes, if they lie one after another."""
        size = self.record_bytes
        if size is not None:
            return range(size, size * len(records) + 1, size)
        starts = self.starts()
        return np.cumsum(starts[records + 1] - starts[records]).tolist()

    def _load_index(self) -> None:
        """Read the end and the index from the open file: another file may have its name by now."""
        size = os.fstat(self._descriptor).st_size
        end = os.pread(self._descriptor, END_BYTES, max(0, size - END_BYTES))
        data_bytes = size - END_BYTES - int.from_bytes(end[:8], "little")
        if end[8:] != MAGIC or data_bytes < 0:
            raise _damaged(self.path, "is no packed file, or cut short; make it again")
        index = bytearray(size - END_BYTES - data_bytes)
        self._read_at(data_bytes, memoryview(index))
        try:
            with np.load(io.BytesIO(index), allow_pickle=False) as file:
                about = json.loads(file["about"].tobytes())
                self.labels, self._checksums = file["labels"], file["checksums"]
                self.record_bytes: int | None = about.pop("record_bytes")
                self._starts = None if self.record_bytes else np.concatenate([[0], file["ends"]])
            self.description = Description(**{**about, "shape": tuple(about["shape"])})
        except _DAMAGE as error:
            reason = f"the index is damaged ({error}); make the file again"
            raise _damaged(self.path, reason, offset=data_bytes) from error
        if data_bytes != self.start_of(len(self)):
            reason = f"{data_bytes} bytes of records where {self.start_of(len(self))} belong; make it again"
            raise _damaged(self.path, reason)


@contextmanager
def writing(
    path: Path, description: Description, *, record_bytes: int | None = None
) -> Iterator[Callable[[bytes | bytearray | memoryview, int], None]]:
    """A function that appends a record and its label to `path`, which is whole at the end of the block.

    If the block raises, there is no file. The records go to a temporary file in the same folder; 20 bytes of
    index per record stay in memory. record_bytes: the size of all records, None if sizes differ. Raises
    ValueError (another size, an empty record, a label that is no class, no record), OSError naming the file.
    """
    labels, ends, checksums = array("q"), array("q"), array("I")
    try:
        with replacing(path) as temporary, open(temporary, "wb", buffering=BUFFER_BYTES) as file:

            def add(record: bytes | bytearray | memoryview, label: int) -> None:
                number, size = len(labels), memoryview(record).nbytes
                if size != record_bytes and (record_bytes is not None or size == 0):
                    allowed = f"{record_bytes} bytes" if record_bytes else "at least one byte"
                    raise ValueError(f"{path}: record {number} has {size} bytes: must be {allowed}")
                if not 0 <= label < description.classes:
                    highest = description.classes - 1
                    raise ValueError(f"{path}: record {number} has label {label}: must be 0 to {highest}")
                file.write(record)
                labels.append(label)
                checksums.append(zlib.crc32(record))
                ends.append((ends[-1] if ends else 0) + size)

            yield add
            if not labels:
                raise ValueError(f"{path}: no record was added")
            text = json.dumps({**asdict(description), "record_bytes": record_bytes})
            arrays: dict[str, Any] = {
                "about": np.frombuffer(text.encode(), dtype=np.uint8),
                "labels": np.array(labels, dtype="<i8"),
                "checksums": np.array(checksums, dtype="<u4"),
            }
            if record_bytes is None:
                arrays["ends"] = np.array(ends, dtype="<i8")
            index = io.BytesIO()
            np.savez(index, **arrays)
            file.write(index.getvalue())
            file.write(index.tell().to_bytes(8, "little") + MAGIC)
    except OSError as error:
        raise located(error, path) from error
