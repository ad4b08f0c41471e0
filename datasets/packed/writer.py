"""Writing a packed file, record after record; under its own name there is only ever a whole file."""

import os
import zlib
from array import array
from pathlib import Path
from types import TracebackType
from typing import Self

import numpy as np

from .format import ALIGNMENT, HEADER_BYTES, INDEX_ALIGNMENT, Description, Header, aligned, located

BUFFER_BYTES = 4 * 2**20


class Writer:
    """Writes `path` as a context manager: whole at the end of the block, not at all if it raises.

    The records go to a temporary file beside it; of each, 12 bytes of the index (20 where sizes differ) stay
    in memory. record_bytes: the size of all records, None if sizes differ.
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
        self._told = description.to_bytes()
        self._begin = aligned(HEADER_BYTES + len(self._told), ALIGNMENT)
        self._bytes = 0

    def __enter__(self) -> Self:
        self._file = open(self._partial, "wb", buffering=BUFFER_BYTES)
        self._file.seek(self._begin)
        return self

    def add(self, record: bytes | bytearray | memoryview, label: int) -> None:
        """Append a record, as it will be read."""
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
        """The index behind the records, the header before them, all of it on the disk."""
        if not self._labels:
            raise ValueError(f"{self._path}: no record was added")
        columns = [np.array(self._labels, dtype="<i8"), np.array(self._checksums, dtype="<u4")]
        if self._record_bytes is None:
            columns.insert(1, np.array(self._ends, dtype="<u8"))
        index = b"".join(column.tobytes() for column in columns)
        header = Header(
            description_bytes=len(self._told),
            records=len(self._labels),
            record_bytes=self._record_bytes or 0,
            data_offset=self._begin,
            index_offset=aligned(self._begin + self._bytes, INDEX_ALIGNMENT),
            index_crc=zlib.crc32(index),
        )
        self._file.seek(header.index_offset)
        self._file.write(index)
        self._file.seek(0)
        self._file.write(header.to_bytes(self._told) + self._told)
        self._file.flush()
        os.fsync(self._file.fileno())


def _flush_folder(folder: Path) -> None:
    """The new name is on the disk only once its folder is."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
