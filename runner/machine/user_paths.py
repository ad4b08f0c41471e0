"""Folders and files that a user names: what is wrong with them, in one sentence."""

import errno
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ...strategies.errors import ConfigError, MachineError

_NO_SPACE = (errno.ENOSPC, errno.EDQUOT, errno.EROFS)


def check_folder(folder: Path, named: str = "") -> None:
    """Refuse a path where no folder is; `named`: how it was given. Raises ConfigError."""
    if not folder.is_dir():
        what = "is no folder" if folder.exists() else "no such folder"
        raise ConfigError(f"{named or folder}: {what}")


@contextmanager
def writing(what: str) -> Iterator[None]:
    """Turn a failed write into one sentence: a full disk is the machine's fault, the rest can be mended."""
    try:
        yield
    except OSError as error:
        sentence = f"{what}: cannot be written: {error.strerror or error}"
        raise (MachineError if error.errno in _NO_SPACE else ConfigError)(sentence) from error
