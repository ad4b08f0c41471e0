"""What can be done in a folder: write, lock, how much room there is. It is tried, not guessed from modes."""

import errno
import fcntl
import os
import tempfile
from pathlib import Path
from typing import Any

NO_LOCKS = (errno.ENOSYS, errno.ENOTSUP, errno.ENOLCK)


def folder_facts(path: Path) -> dict[str, Any]:
    """Facts of `path`, or of the nearest folder above it that exists: then it is to be made there.

    `error`: why a file cannot be written there (None: it can); `locks`: whether it can be locked (None: not
    known); `free_bytes`, `total_bytes`, `free_inodes`; `device` and `inode` of the folder.
    """
    path = Path(path).absolute()
    there = _nearest(path)
    facts: dict[str, Any] = {"path": str(path), "tried": str(there), "exists": there == path}
    facts["error"], facts["locks"] = _write_and_lock(there)
    try:
        found, room = there.stat(), os.statvfs(there)
    except OSError as error:
        return {**facts, "error": facts["error"] or _why(error)}
    return {
        **facts,
        "device": found.st_dev,
        "inode": found.st_ino,
        "free_bytes": room.f_bavail * room.f_frsize,
        "total_bytes": room.f_blocks * room.f_frsize,
        # Some file systems have no fixed number of inodes, and say 0 of 0.
        "free_inodes": room.f_favail if room.f_files else None,
    }


def _nearest(path: Path) -> Path:
    for there in (path, *path.parents):
        try:
            there.lstat()
        except NotADirectoryError:
            continue
        except OSError as error:
            if error.errno in (errno.ENOENT, errno.ELOOP):
                continue
        return there
    return path


def _write_and_lock(folder: Path) -> tuple[str | None, bool | None]:
    try:
        with tempfile.NamedTemporaryFile(dir=folder, prefix=".daso-bench-doctor-") as file:
            file.write(b"x")
            file.flush()
            return None, _locks(file.fileno())
    except OSError as error:
        return _why(error), None


def _locks(descriptor: int) -> bool | None:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        return False if error.errno in NO_LOCKS else None
    return True


def _why(error: OSError) -> str:
    return error.strerror or str(error)
