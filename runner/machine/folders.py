"""Folders: checks of those that a user names, errors of writing, free space."""

import errno
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ...strategies.errors import ConfigError, MachineError

NO_SPACE = (errno.ENOSPC, errno.EDQUOT, errno.EROFS)


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
        raise (MachineError if error.errno in NO_SPACE else ConfigError)(sentence) from error


def folder_facts(path: Path) -> dict[str, Any]:
    """Whether a file can be written in `path`, which is tried, and the room there.

    Of a folder that does not exist yet: the facts of the nearest folder above it. `error`: why no file can be
    written (None: it can); `free_bytes`, `total_bytes` (absent if the file system does not tell).
    """
    path = Path(path).absolute()
    nearest = next((folder for folder in (path, *path.parents) if os.path.lexists(folder)), path)
    facts: dict[str, Any] = {"path": str(path), "error": None}
    try:
        room = os.statvfs(nearest)
        facts |= {"free_bytes": room.f_bavail * room.f_frsize, "total_bytes": room.f_blocks * room.f_frsize}
        with tempfile.NamedTemporaryFile(dir=nearest, prefix=".daso-bench-doctor-") as file:
            file.write(b"x")
            file.flush()
    except OSError as error:
        facts["error"] = error.strerror or str(error)
    return facts
