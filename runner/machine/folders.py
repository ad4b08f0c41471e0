"""Folders: checks of those that a user names, errors of writing, free space."""

import errno
import fcntl
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ...strategies.errors import ConfigError, MachineError

NO_LOCKS = (errno.ENOSYS, errno.ENOTSUP, errno.ENOLCK)
_NO_SPACE = (errno.ENOSPC, errno.EDQUOT, errno.EROFS)


def check_folder(folder: Path, named: str = "") -> None:
    """Raise ConfigError unless `folder` is one. `named`: how the user wrote it."""
    if not folder.is_dir():
        what = "is no folder" if folder.exists() else "no such folder"
        raise ConfigError(f"{named or folder}: {what}")


@contextmanager
def writing(what: str) -> Iterator[None]:
    """Turn an OSError into a sentence: MachineError for a full disk, ConfigError for what a user can mend."""
    try:
        yield
    except OSError as error:
        sentence = f"{what}: cannot be written: {error.strerror or error}"
        raise (MachineError if error.errno in _NO_SPACE else ConfigError)(sentence) from error


def folder_facts(path: Path) -> dict[str, Any]:
    """Whether a file can be written and locked in `path`, which is tried, and the room there.

    Of a folder that does not exist yet: the facts of the nearest folder above it (`tried`). `error`: why no
    file can be written (None: it can); `locks`: whether it can be locked (None: unknown); `free_bytes`,
    `total_bytes`, `free_inodes`; `device` and `inode` of the folder.
    """
    path = Path(path).absolute()
    there = _nearest(path)
    facts: dict[str, Any] = {"path": str(path), "tried": str(there), "exists": there == path}
    facts["error"], facts["locks"] = _write_and_lock(there)
    try:
        status, room = there.stat(), os.statvfs(there)
    except OSError as error:
        return {**facts, "error": facts["error"] or _why(error)}
    return {
        **facts,
        "device": status.st_dev,
        "inode": status.st_ino,
        "free_bytes": room.f_bavail * room.f_frsize,
        "total_bytes": room.f_blocks * room.f_frsize,
        # Some file systems have no fixed number of inodes, and report 0 of 0.
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
