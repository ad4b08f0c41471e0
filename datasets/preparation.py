"""One process prepares, others wait, and a process that is killed leaves nothing that looks complete.

In the folder: a lock, which the system opens again when its holder dies; temporary names, which whoever has
the lock next removes; and a rename at the end. Files are fetched from the network inside of `fetching`.
"""

import contextlib
import fcntl
import http.client
import io
import os
import shutil
import socket
import tempfile
import textwrap
from collections.abc import Iterator
from pathlib import Path

LOCK = ".daso-bench.lock"
TEMPORARY = ".daso-bench-unfinished-"
_TRIES = 10
TIMEOUT_S = 30.0  # without an answer
# HTTPException: of an answer that is none; ValueError: of an address that is none, to which it redirects.
_FAILURES = (RuntimeError, OSError, http.client.HTTPException, ValueError)


class BadFile(OSError):
    """A data set's file is damaged, cut short, or another's: the message names it and the way out."""


@contextlib.contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Hold `folder` (made if missing), alone among all processes; what an earlier holder left is removed.

    A holder that fails takes the lock away, and the folders that were made for it if nothing else is there.
    Raises OSError naming the folder where it cannot be written, FileNotFoundError where it is none.
    """
    made = [path for path in (folder, *folder.parents) if not path.exists()]
    try:
        with _lock_of(folder):
            for left in folder.glob(f"{TEMPORARY}*"):
                shutil.rmtree(left) if left.is_dir() else left.unlink()
            try:
                yield
            except BaseException:
                (folder / LOCK).unlink(missing_ok=True)
                raise
    except BaseException:
        with contextlib.suppress(OSError):  # what has anything in it stays
            for path in made:
                path.rmdir()
        raise


@contextlib.contextmanager
def _lock_of(folder: Path) -> Iterator[None]:
    """The lock file of `folder`, held. A failing holder removes the file: whoever waited takes the next."""
    tries = _TRIES
    while True:
        try:
            folder.mkdir(parents=True, exist_ok=True)
            lock = open(folder / LOCK, "a")  # noqa: SIM115 (closed below, also when the lock cannot be had)
        except FileExistsError as error:
            raise FileNotFoundError(f"{folder}: is no folder") from error
        except OSError as error:
            tries -= 1
            if tries and isinstance(error, FileNotFoundError):  # a failing holder has just removed it?
                continue
            raise OSError(f"{folder}: cannot be written ({error.strerror})") from error
        with lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if _is(folder / LOCK, lock.fileno()):
                yield
                return


def _is(path: Path, descriptor: int) -> bool:
    try:
        return os.path.samestat(os.stat(path), os.fstat(descriptor))
    except FileNotFoundError:
        return False


@contextlib.contextmanager
def scratch(folder: Path) -> Iterator[Path]:
    """A temporary folder in `folder`, on the same file system, so that renaming out of it is one step."""
    with tempfile.TemporaryDirectory(prefix=TEMPORARY, dir=folder) as temporary:
        yield Path(temporary)


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A temporary file beside `path`, which takes its place when the block ends without an exception."""
    handle, name = tempfile.mkstemp(prefix=TEMPORARY, dir=path.parent)
    os.close(handle)
    temporary = Path(name)
    try:
        yield temporary
        with open(temporary, "rb") as file:
            os.fsync(file.fileno())
        temporary.chmod(0o644)  # mkstemp's files are the owner's alone
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


@contextlib.contextmanager
def fetching(title: str, elsewhere: str) -> Iterator[None]:
    """Run a download of torchvision's: no answer for 30 s, or any other failure, is one short message.

    title: of the data set; elsewhere: how to come by it without this machine's network.
    Raises ConnectionError.
    """
    before = socket.getdefaulttimeout()
    socket.setdefaulttimeout(TIMEOUT_S)
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            yield
    except _FAILURES as error:
        why = " ".join(str(error).split()) or type(error).__name__
        raise ConnectionError(f"{title} could not be fetched ({_short(why)}): {elsewhere}") from error
    finally:
        socket.setdefaulttimeout(before)


def _short(why: str) -> str:
    """At most 200 characters, whole words where there are any."""
    return textwrap.shorten(why, 200, placeholder=" ...") if " " in why[:200] else why[:200]


def elsewhere(name: str, root: str, files: str) -> str:
    """The ways out where there is no network, in one sentence."""
    return (
        f"on a machine with a network run daso-bench prepare dataset={name} dataset.root=DIR and copy DIR "
        f"to {root}, or put {files} there"
    )
