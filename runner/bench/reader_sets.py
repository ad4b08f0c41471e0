"""Packed sets to read: made for a bench, in a folder that goes with it, and read with a cold cache."""

import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from ...datasets.packed.packed_file import Writer
from ...datasets.packed.packed_format import Description
from ..readers.page_cache import drop
from .reader_arms import SEQUENTIAL, Arm, Reading, read_alone

COLD = 0.98  # of the useful bytes must come from the disk
ROOM = 1.2  # of a set must be free: its index, and other people's files
BLOCK_BYTES = 16 * 2**20
CLASSES = 10


@contextmanager
def packed_set(size: int, records: int) -> Iterator[Path]:
    """A set of random bytes; gone afterwards, however that comes. size: bytes of a record."""
    with tempfile.TemporaryDirectory(prefix="daso-bench-readers-") as folder:
        path = Path(folder) / f"{size}.packed"
        made = "random bytes, PCG64 with seed 0"
        told = Description(name="random", classes=CLASSES, shape=(size,), encoding="uint8", made=made)
        generator = np.random.Generator(np.random.PCG64(0))
        with Writer(path, told, record_bytes=size) as writer:
            for first in range(0, records, BLOCK_BYTES // size):
                count = min(BLOCK_BYTES // size, records - first)
                block = memoryview(generator.bytes(count * size))
                for place in range(count):
                    writer.add(block[place * size : (place + 1) * size], (first + place) % CLASSES)
        yield path


def free_bytes() -> int:
    """On the disk where sets are made."""
    return shutil.disk_usage(tempfile.gettempdir()).free


def cold_read(arm: Arm, read: Callable[[Arm], Reading] = read_alone) -> Reading:
    """Read once after a plain read of the whole file, whose pages are dropped.

    Without that read before, a read is several times as fast after some arms as after others: memory, and
    caches below this machine's own, are as the arm before has left them.
    """
    read(Arm(path=arm.path, reader=SEQUENTIAL))
    drop(Path(arm.path))
    return read(arm)


def cold_and_warm(arm: Arm, read: Callable[[Arm], Reading] = read_alone) -> tuple[Reading, Reading]:
    """As `cold_read`, and the same read once more, of what lies in the page cache now."""
    return cold_read(arm, read), read(arm)


def warm_refusal(readings: list[Reading]) -> str | None:
    """Why these reads had to do with a disk; None if none of them had."""
    shares = [reading.cold_share for reading in readings]
    cold = [share for share in shares if not share <= 1 - COLD]
    if not cold:
        return None
    told = ", ".join("not known" if share != share else f"{share:.1%}" for share in cold)
    return f"refused: {len(cold)} of {len(shares)} reads not warm: of their bytes came from the disk: {told}"


def refusal(readings: list[Reading]) -> str | None:
    """Why these reads say nothing of a disk; None if each of them was cold."""
    shares = [reading.cold_share for reading in readings]
    warm = [share for share in shares if not share >= COLD]
    if not warm:
        return None
    told = ", ".join("not known" if share != share else f"{share:.1%}" for share in warm)
    return f"refused: {len(warm)} of {len(shares)} reads not cold: of their bytes came from the disk: {told}"
