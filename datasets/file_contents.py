"""Digest of what files hold, from a part of each: other files under the same names and sizes are noticed.

Of each file the first 64 KiB are read, or less where there are many files (`FIRST_BYTES` of all together, but
at least 2 KiB), and of what lies beyond two pieces of 2 KiB: one at a place that the file's name decides, and
the end. So 4 GiB and 4 KiB a file are the most that is read: 8 GB of a million files, whose headers were read
before. A change in between is not noticed.
"""

import hashlib
import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

HEAD, PIECE = 64 * 1024, 2048  # bytes of a file
FIRST_BYTES = 4 * 1024**3  # of all files together
SAMPLED = 64  # files that are read again before each start
_TOGETHER = 4096  # files whose digests wait in memory


def digest_of_files(root: str, paths: Sequence[str]) -> str:
    """Digest of the files at `paths` below `root`, in their order, those that cannot be read included."""
    seen = hashlib.blake2b(digest_size=8)
    head = max(PIECE, min(HEAD, FIRST_BYTES // max(1, len(paths))))
    threads = min(16, 2 * (os.cpu_count() or 1))  # they mostly wait for the disk
    with ThreadPoolExecutor(threads) as pool:
        for start in range(0, len(paths), _TOGETHER):
            for part in pool.map(lambda path: _digest(root, path, head), paths[start : start + _TOGETHER]):
                seen.update(part)
    return seen.hexdigest()


def sample_of(paths: Sequence[str]) -> list[str]:
    """`SAMPLED` of the paths, evenly spread over their order; all of fewer."""
    count = min(SAMPLED, len(paths))
    return [paths[number * len(paths) // count] for number in range(count)]


def _digest(root: str, path: str, head: int) -> bytes:
    seen = hashlib.blake2b(digest_size=8)
    place = os.path.join(root, path)
    if not os.path.isfile(place):  # opening a pipe would wait for its writer
        return b"no file"
    try:
        with open(place, "rb") as file:
            size = os.fstat(file.fileno()).st_size
            seen.update(file.read(head))
            if size > head:
                name = hashlib.blake2b(path.encode("utf-8", "surrogateescape"), digest_size=8).digest()
                for offset in (head + int.from_bytes(name, "big") % (size - head), max(head, size - PIECE)):
                    file.seek(offset)
                    seen.update(file.read(PIECE))
    except OSError:
        seen.update(b"cannot be read")
    return seen.digest()
