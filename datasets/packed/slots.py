"""Slots of shared memory that hold steps: where their numbers, labels and records lie."""

import mmap
import os
import tempfile
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from .packed_file import Packed

LINE = 64  # bytes of a cache line


def anonymous(size: int) -> int:
    """Descriptor of so many bytes of shared memory without a name (where there is no memfd: not any more)."""
    if hasattr(os, "memfd_create"):
        descriptor = os.memfd_create("daso-bench-reader")
    else:
        descriptor, path = tempfile.mkstemp(prefix="daso-bench-reader-")
        os.unlink(path)
    os.ftruncate(descriptor, size)
    return descriptor


@dataclass(frozen=True, kw_only=True)
class Geometry:
    """What lies where in shared memory: `depth` slots of records, their ends (int64), numbers and labels.

    content_bytes: room for records in a slot; records: how many at most.
    """

    depth: int
    content_bytes: int
    records: int

    @classmethod
    def of(cls, packed: Packed, records: int, depth: int = 2) -> "Geometry":
        """Room for any `records` records of a file; pages that are never used cost nothing."""
        if depth < 2:
            raise ValueError(f"depth={depth}: must be >= 2, or nothing is read while ranks compute")
        largest = packed.record_bytes or int(np.diff(packed.starts()).max())
        return cls(depth=depth, content_bytes=largest * records, records=records)

    @property
    def slot_bytes(self) -> int:
        """A slot, in whole cache lines."""
        return -(-(self.content_bytes + 3 * 8 * self.records) // LINE) * LINE

    def slots(self, memory: mmap.mmap) -> "list[Slot]":
        """Views of the slots in mapped memory."""
        return [self._slot(memory, place * self.slot_bytes) for place in range(self.depth)]

    def _slot(self, memory: mmap.mmap, offset: int) -> "Slot":
        # Numbers first: they want to be aligned.
        numbers = np.frombuffer(memory, dtype=np.int64, count=3 * self.records, offset=offset)
        ends, records, labels = numbers.reshape(3, self.records)
        content = np.frombuffer(memory, np.uint8, self.content_bytes, offset + numbers.nbytes)
        return Slot(ends=ends, records=records, labels=labels, content=content)


@dataclass(frozen=True, kw_only=True, eq=False)
class Slot:
    """One step in shared memory: int64 [records] each, and uint8 [content_bytes]."""

    ends: NDArray[np.int64]
    records: NDArray[np.int64]
    labels: NDArray[np.int64]
    content: NDArray[np.uint8]

    def part(self, number: int, step: int, first: int, count: int) -> "Part":
        """The records [first, first + count) of the slot."""
        begin = int(self.ends[first - 1]) if first else 0
        ends = self.ends[first : first + count]
        return Part(
            number=number,
            step=step,
            records=self.records[first : first + count],
            labels=self.labels[first : first + count],
            ends=ends - begin,
            content=self.content[begin : int(ends[-1]) if count else begin],
        )


@dataclass(frozen=True, kw_only=True, eq=False)
class Part:
    """What one member gets of a step: views of shared memory, valid until it asks for the next.

    number: of the epoch; step: in it; records, labels: int64 [b]; ends: int64 [b], where records end in
    `content`, uint8, one after another.
    """

    number: int
    step: int
    records: NDArray[np.int64]
    labels: NDArray[np.int64]
    ends: NDArray[np.int64]
    content: NDArray[np.uint8]

    def __len__(self) -> int:
        return len(self.records)

    def record(self, place: int) -> NDArray[np.uint8]:
        """The bytes of the record at `place`."""
        return self.content[int(self.ends[place - 1]) if place else 0 : int(self.ends[place])]
