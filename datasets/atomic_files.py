"""Locked folders, temporary files and atomic renames: one process prepares a data set while others wait.

A process that is killed leaves nothing that looks complete: the system releases its lock, its files have
temporary names, which the next holder of the lock removes, and a rename comes at the end.
"""

import contextlib
import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

LOCK = ".daso-bench.lock"
TEMPORARY = ".daso-bench-unfinished-"


class BadFile(OSError):
    """A file is damaged, cut short, or of another data set: the message names it and the way out."""


@contextlib.contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Hold the lock of `folder` (made if missing); temporary files of earlier holders are removed.

    Raises OSError naming the folder if it cannot be written, FileNotFoundError if it is no folder.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = open(folder / LOCK, "a")  # noqa: SIM115 (closed below)
    except FileExistsError as error:
        raise FileNotFoundError(f"{folder}: is no folder") from error
    except OSError as error:
        raise OSError(f"{folder}: cannot be written ({error.strerror})") from error
    with lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        for left in folder.glob(f"{TEMPORARY}*"):
            shutil.rmtree(left) if left.is_dir() else left.unlink()
        yield


@contextlib.contextmanager
def scratch(folder: Path) -> Iterator[Path]:
    """A temporary folder in `folder`, on the same file system, so that renaming out of it is one step."""
    with tempfile.TemporaryDirectory(prefix=TEMPORARY, dir=folder) as temporary:
        yield Path(temporary)


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """The path of a temporary file that replaces `path` when the block ends without an exception."""
    with scratch(path.parent) as folder:
        temporary = folder / path.name
        yield temporary
        with open(temporary, "rb") as file:
            os.fsync(file.fileno())
        temporary.chmod(0o644)  # whatever the umask: all users may read it
        temporary.replace(path)
