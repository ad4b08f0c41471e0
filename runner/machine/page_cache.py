"""Page cache of files: which share of them is cached, dropping a file, and reading it in."""

import ctypes
import math
import mmap
import os
from collections.abc import Sequence
from pathlib import Path
from typing import BinaryIO

import numpy as np
from numpy.typing import NDArray

from ...datasets.packed.packed_file import located

MAPPED_BYTES = 2**30  # at once
READ_BYTES = 2**22
SAMPLED_FILES = 256  # of a data set of many files: some milliseconds
ALLOWED = 0.02  # share of the pages that may be in another state than configured


def drop(path: Path) -> None:
    """Drop the pages of a file from the cache.

    Pages that a process has mapped stay, and those of a file in memory (tmpfs).
    """
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)  # a page that is not on the disk yet cannot be dropped
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    except OSError as error:
        raise located(error, path) from error
    finally:
        os.close(descriptor)


def read_in(path: Path) -> None:
    """Read all of a file."""
    into = bytearray(READ_BYTES)
    with open(path, "rb", buffering=0) as file:
        try:
            while file.readinto(into):
                pass
        except OSError as error:
            raise located(error, path, file.tell()) from error


def cached(folder: Path, files: Sequence[str]) -> float | None:
    """The share of the pages of `files` below `folder` that is in the cache; None where it is not reported.

    Linux reports it of files that the user owns or may write to; all pages of others are reported as cached.
    Looks at no more than `SAMPLED_FILES` of them, evenly spaced, and reads nothing. A file that cannot be
    opened is left out.
    """
    resident = pages = 0
    for place in range(0, len(files), max(1, math.ceil(len(files) / SAMPLED_FILES))):
        try:
            counts = _counts(folder / files[place])
        except OSError:  # who reads the file will say so
            continue
        if counts is None:
            return None
        resident, pages = resident + counts[0], pages + counts[1]
    return resident / pages if pages else None


def _counts(path: Path) -> tuple[int, int] | None:
    """(pages in the cache, pages) of a file; None where the system does not report it. Raises OSError."""
    with open(path, "rb") as file:
        stat = os.fstat(file.fileno())
        if os.geteuid() not in (0, stat.st_uid) and not os.access(path, os.W_OK):
            return None
        resident = pages = 0
        for begin in range(0, stat.st_size, MAPPED_BYTES):
            states = _states(file, begin, min(MAPPED_BYTES, stat.st_size - begin))
            if states is None:
                return None
            resident += int(np.count_nonzero(states & 1))
            pages += len(states)
        return resident, pages


def remark(*, cold: bool, warm: bool, lacking: float) -> str | None:
    """A label of a run whose cache was not as it was asked for when training began; None where it was.

    lacking: the share of the file's pages that was not; NaN where the system does not report it.
    """
    if lacking <= ALLOWED or not (cold or warm):
        return None
    asked, began = f"reader.{'cold' if cold else 'warm'}=true", "the system's cache when training began"
    if math.isnan(lacking):
        return f"{asked}: not known: the system does not tell what of the packed file was in {began}"
    were = "were" if cold else "were not"
    return f"{asked}: it was not so: {lacking:.0%} of the packed file's pages {were} in {began}"


def _states(file: BinaryIO, begin: int, size: int) -> NDArray[np.uint8] | None:
    """A number for each page of a part of a file, odd where it is in the cache; None if the call fails."""
    try:
        mapped = np.memmap(file, np.uint8, "r", begin, (size,))
    except OSError:  # there are file systems that map nothing
        return None
    states = np.empty(-(-size // mmap.PAGESIZE), dtype=np.uint8)
    address, into = ctypes.c_void_p(mapped.ctypes.data), ctypes.c_void_p(states.ctypes.data)
    return None if ctypes.CDLL(None).mincore(address, ctypes.c_size_t(size), into) else states
