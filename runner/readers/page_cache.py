"""What of a file lies in the system's page cache, and dropping it from there."""

import ctypes
import mmap
import os
from pathlib import Path


def drop(path: Path) -> float | None:
    """Drop the pages of a file, all processes'; returns the share of them that is still there.

    None where the system cannot drop them or does not tell. Pages that somebody has mapped stay.
    """
    if not hasattr(os, "posix_fadvise"):
        return None
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)  # a page that is not on the disk yet cannot be dropped
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        return _cached(descriptor)
    finally:
        os.close(descriptor)


def _cached(descriptor: int) -> float | None:
    size = os.fstat(descriptor).st_size
    # A private copy is the only kind of map whose address Python gives away; nothing is copied.
    with mmap.mmap(descriptor, size, access=mmap.ACCESS_COPY) as memory:
        pages = -(-size // mmap.PAGESIZE)
        told = (ctypes.c_ubyte * pages)()
        start = ctypes.c_char.from_buffer(memory)
        try:
            failed = ctypes.CDLL(None).mincore(
                ctypes.c_void_p(ctypes.addressof(start)), ctypes.c_size_t(size), told
            )
        finally:
            del start
    return None if failed else sum(page & 1 for page in told) / pages
