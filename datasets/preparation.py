"""Preparing data sets safely: locks, temporary names, downloads; and the base class of downloaded data sets.

One process prepares while others wait, and a process that is killed leaves nothing that looks complete: the
folder has a lock, which the system releases when its holder dies; temporary names, which the next holder of
the lock removes; and a rename at the end.
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
from abc import ABC
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar, Self

from torch import Tensor

from .data import Data, Split
from .dataset import Dataset, DatasetInfo
from .transforms import Change, recipe
from .tree import split_by_class

LOCK = ".daso-bench.lock"
TEMPORARY = ".daso-bench-unfinished-"
_TRIES = 10
TIMEOUT_S = 30.0  # without an answer
# HTTPException: of a malformed answer; ValueError: of a malformed address in a redirection.
_FAILURES = (RuntimeError, OSError, http.client.HTTPException, ValueError)


class BadFile(OSError):
    """A file is damaged, cut short, or of another data set: the message names it and the way out."""


@contextlib.contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Hold the lock of `folder` (made if missing); temporary files of earlier holders are removed.

    If the block fails, the lock file and the folders made for it are removed, unless they hold other files.
    Raises OSError naming the folder if it cannot be written, FileNotFoundError if it is no folder.
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
        with contextlib.suppress(OSError):  # a folder that is not empty stays
            for path in made:
                path.rmdir()
        raise


@contextlib.contextmanager
def _lock_of(folder: Path) -> Iterator[None]:
    """Hold the lock file of `folder`. If a failing holder removed the file meanwhile, lock the next one."""
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
    """A temporary file that replaces `path` when the block ends without an exception."""
    handle, name = tempfile.mkstemp(prefix=TEMPORARY, dir=path.parent)
    os.close(handle)
    temporary = Path(name)
    try:
        yield temporary
        with open(temporary, "rb") as file:
            os.fsync(file.fileno())
        temporary.chmod(0o644)  # mkstemp makes files that only the owner can read
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


@contextlib.contextmanager
def fetching(title: str, elsewhere: str) -> Iterator[None]:
    """Run a download by torchvision: any failure, also no answer for 30 s, becomes one short message.

    title: of the data set; elsewhere: how to get it without a network here. Raises ConnectionError.
    """
    before = socket.getdefaulttimeout()
    socket.setdefaulttimeout(TIMEOUT_S)
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            yield
    except _FAILURES as error:
        reason = " ".join(str(error).split()) or type(error).__name__
        raise ConnectionError(f"{title} could not be fetched ({_short(reason)}): {elsewhere}") from error
    finally:
        socket.setdefaulttimeout(before)


def _short(reason: str) -> str:
    """At most 200 characters; cut between words if possible."""
    return textwrap.shorten(reason, 200, placeholder=" ...") if " " in reason[:200] else reason[:200]


def elsewhere(name: str, root: str, files: str) -> str:
    """How to get the files without a network here, in one sentence."""
    return (
        f"on a machine with a network run daso-bench prepare dataset={name} dataset.root=DIR and copy DIR "
        f"to {root}, or put {files} there"
    )


# ------------------------------------------------------------------ fetched by torchvision


@dataclass(frozen=True, kw_only=True)
class DownloadedDataset(Dataset, ABC):
    """A data set that torchvision downloads; its validation split is held out of the training images.

    root: folder in torchvision's layout, relative to the working folder; download: whether a run may fetch
    the files (`daso-bench prepare` always may); augment: random changes of training images, see
    `transforms.recipe`. Raises ValueError for an unknown one.
    """

    root: str = "data"
    download: bool = False
    augment: str = "none"

    title: ClassVar[str]
    classes: ClassVar[int]
    shape: ClassVar[tuple[int, int, int]]
    mean: ClassVar[tuple[float, ...]]  # per channel, of the training images; pixels are 0 to 255
    std: ClassVar[tuple[float, ...]]
    train_images: ClassVar[int]
    test_images: ClassVar[int]
    validation_share: ClassVar[int]  # validation gets 1 of so many training images of each class

    def __post_init__(self) -> None:
        recipe(self.augment, self.shape[1:])

    def info(self) -> DatasetInfo:
        """See `Dataset.info`."""
        held_out = self.train_images // self.classes // self.validation_share * self.classes
        samples = {
            "train": self.train_images - held_out,
            "validation": held_out,
            "test": self.test_images,
        }
        return DatasetInfo(shape=self.shape, classes=self.classes, samples=samples)

    def downloading(self) -> Self:
        """See `Dataset.downloading`."""
        return replace(self, download=True)

    def folder(self) -> str:
        """See `Dataset.folder`."""
        return self.root

    def torchvision_name(self) -> str:
        """The name of torchvision's class."""
        return self.title.replace("-", "")

    def in_splits(self, images: Tensor, labels: Tensor, test_images: Tensor, test_labels: Tensor) -> Data:
        """The data set of images uint8 [M, C, H, W] and labels int64 [M]."""
        per_class = len(labels) // self.classes // self.validation_share
        train, validation = split_by_class(labels, per_class, self.name)

        def split(images: Tensor, labels: Tensor, augment: Change | None = None) -> Split:
            return Split(images=images, labels=labels, mean=self.mean, std=self.std, augment=augment)

        return Data(
            name=self.name,
            classes=self.classes,
            shape=self.shape,
            train=split(images[train], labels[train], recipe(self.augment, self.shape[1:])),
            validation=split(images[validation], labels[validation]),
            test=split(test_images, test_labels),
        )
