"""Verifies data sets of image files: `prepare` checks all files once and writes a manifest for all ranks.

The manifest lists the usable files of each split with their labels. `load` reads nothing else: all ranks have
the same samples in the same order. It is a NumPy archive; `about` is JSON. Its parts have checksums (CRC-32,
of the zip format), so that damage is noticed.
"""

import dataclasses
import hashlib
import json
import os
import zipfile
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from .atomic_files import BadFile, locked, replacing
from .data import SPLITS, Data, Samples
from .dataset import OWN_FOLDER, Dataset, DatasetInfo, Tell, silent
from .listing import File, Tree
from .pixels import BadImage, PixelRules
from .transforms import IMAGENET_MEAN, IMAGENET_STD, Change, check_normalisation, normalise

CHECKS = ("headers", "decode", "none")
POLICIES = ("stop", "skip")
LOADING_KEYS = ("root", "prepared", "augment", "mean", "std")
SHOWN = 20  # bad files named in an error
FORMAT = 3  # a manifest of another format is made again
_TOLD_EVERY = 256  # files, of the progress
_TOGETHER = 4096  # files of which the threads are given the paths at a time
# Errors of zipfile and NumPy for a damaged archive. RuntimeError: an entry looks encrypted, or of a later
# version; OSError: an offset lies before the start.
_DAMAGE = (ValueError, KeyError, EOFError, RuntimeError, OSError, zipfile.BadZipFile)


class BadFiles(ValueError):
    """Files of a data set that cannot be used. `bad`: (path, reason) of each; the message names the first."""

    def __init__(self, where: str, bad: Sequence[tuple[str, str]], total: int) -> None:
        self.bad = list(bad)
        lines = [f"  {path}: {reason}" for path, reason in bad[:SHOWN]]
        more = [f"  ... and {len(bad) - SHOWN} more"] if len(bad) > SHOWN else []
        way_out = "mend or remove them, or set dataset.bad_files=skip"
        head = f"{where}: {len(bad)} of {total} files are bad; {way_out}"
        super().__init__("\n".join([head, *lines, *more]))


@dataclass(frozen=True, kw_only=True)
class PreparedFolder(Dataset, ABC):
    """Samples in files below `root`.

    root: the folder, relative to the working folder; prepared: the folder of the manifest, empty for
    .daso-bench in `root`; check: headers, decode or none, what is read of each file before training;
    bad_files: stop names them, skip leaves them out and counts them; augment: random changes for training;
    mean, std: per channel, on a scale of 0 to 1. Raises ValueError for a value out of range.
    """

    root: str
    prepared: str = ""
    check: str = "headers"
    bad_files: str = "stop"
    augment: str = "none"
    mean: tuple[float, ...] = IMAGENET_MEAN
    std: tuple[float, ...] = IMAGENET_STD

    size_keys: ClassVar[tuple[str, str]]
    """Keys of the size of images. With `LOADING_KEYS`: those that do not change the split of a file."""
    held_out_of: ClassVar[str]
    """The source of a missing split, in words for a message."""

    def __post_init__(self) -> None:
        for key, allowed in (("check", CHECKS), ("bad_files", POLICIES)):
            if getattr(self, key) not in allowed:
                raise ValueError(
                    f"dataset.{key}={getattr(self, key)}: unknown; must be one of {', '.join(allowed)}"
                )
        for name in ("rules", "change"):
            getattr(self, name)  # each checks its values
        check_normalisation(self.mean, self.std, self.shape[0])

    @property
    @abstractmethod
    def shape(self) -> tuple[int, int, int]:
        """Of an image, [C, H, W]."""

    @property
    @abstractmethod
    def rules(self) -> PixelRules:
        """From file to pixels."""

    @property
    @abstractmethod
    def transform(self) -> Callable[..., Any]:
        """From a decoded sample of any size to one of `shape`."""

    @property
    @abstractmethod
    def change(self) -> Callable[..., Any] | None:
        """As `transform`, for training; None without random changes."""

    @property
    def normalise(self) -> Change:
        """From pixels to the input of the model."""
        return partial(normalise, mean=self.mean, std=self.std)

    @abstractmethod
    def samples_of(self, labels: Tensor, common: dict[str, Any]) -> Samples:
        """A split. labels: int64 [M]; common: the arguments that all kinds of splits of files have."""

    @abstractmethod
    def tree(self) -> Tree:
        """The files below `root`. Raises FileNotFoundError, ValueError if the layout is wrong."""

    @abstractmethod
    def divide(self, splits: dict[str, list[File]]) -> dict[str, list[File]]:
        """Train, validation and test of the usable files; missing splits are held out of train."""

    @abstractmethod
    def look(self, path: str) -> None:
        """Check the file at `path` below `root`. Raises BadImage.

        check=headers reads its header, and all of a JPEG or PNG file without its end mark; decode all of it.
        """

    def parts(self, path: str) -> tuple[str, ...]:
        """The files below `root` that make up the sample at `path`."""
        return (path,)

    def lacking(self, classes: Sequence[str], splits: dict[str, list[File]]) -> list[str]:
        """Warnings about classes without images in a split."""
        return []

    def load(self) -> Data:
        manifest = self.manifest()
        common = {
            "root": self.root,
            "shape": self.shape,
            "rules": self.rules,
            "transform": self.transform,
            "normalise": self.normalise,
        }
        splits: dict[str, Any] = {}
        for name in SPLITS:
            own = {"paths": manifest.paths[name], "change": self.change if name == "train" else None}
            splits[name] = self.samples_of(manifest.labels[name], common | own)
        about = manifest.about
        classes = len(about["class_names"])
        return Data(name=self.name, classes=classes, shape=self.shape, files=about["files"], **splits)

    def info(self) -> DatasetInfo:
        about = self.about()
        if about is None:
            return DatasetInfo(shape=self.shape)
        return DatasetInfo(shape=self.shape, classes=len(about["class_names"]), samples=about["samples"])

    def folder(self) -> str:
        return self.root

    def beside(self) -> Path:
        return self.manifest_file.with_suffix("")

    def fingerprint(self) -> str:
        """See `Dataset.fingerprint`: of names, sizes, times and content of the files, once prepared."""
        about = self.about()
        return repr(self) if about is None else f"{self.manifest_file.name} {about['tree']} {about['files']}"

    @property
    def manifest_file(self) -> Path:
        """The file of the manifest for these keys."""
        loading = (*LOADING_KEYS, *self.size_keys)
        values = {key: value for key, value in dataclasses.asdict(self).items() if key not in loading}
        if self.prepared:  # which may hold manifests of other folders, too
            values["root"] = os.path.abspath(self.root)
        text = json.dumps(values, sort_keys=True).encode()
        folder = Path(self.prepared) if self.prepared else Path(self.root) / OWN_FOLDER
        return folder / f"{self.name}-{hashlib.blake2b(text, digest_size=8).hexdigest()}.npz"

    def about(self) -> dict[str, Any] | None:
        """Facts about the prepared data set, see `Manifest`; None if it is not prepared."""
        try:
            with _archive(self.manifest_file) as file:
                return _about(file)
        except OSError:
            return None

    def prepare(self, tell: Tell = silent) -> None:
        """Check the files and write the manifest, unless there is one of the same files.

        Names, sizes and times tell whether they are the same, and the content of `SAMPLED` of them. One
        process at a time does so, others wait. Raises FileNotFoundError, BadFiles with every bad file and its
        reason, ValueError for other problems, OSError if the manifest cannot be written.
        """
        tree = self.tree()
        if self._is_prepared(tree):
            return
        with ExitStack() as stack:
            with _way_out():
                stack.enter_context(locked(self.manifest_file.parent))
            if not self._is_prepared(tree):  # by the process that held the lock before
                splits, about = self._verified(tree, tell)
                with _way_out():
                    write_manifest(self.manifest_file, splits, about)

    def manifest(self) -> "Manifest":
        """The manifest that `prepare` wrote.

        Raises FileNotFoundError if there is none, BadFile naming the file if it is damaged, OSError.
        """
        try:
            with _archive(self.manifest_file) as file:
                return Manifest(
                    paths={name: Paths(file[f"{name}_paths"]) for name in SPLITS},
                    labels={name: torch.from_numpy(file[f"{name}_labels"]) for name in SPLITS},
                    about=_about(file),
                )
        except FileNotFoundError as error:
            raise FileNotFoundError(
                f"dataset.root={self.root}: not prepared with these keys (no {self.manifest_file}); run "
                f"daso-bench prepare dataset={self.name} dataset.root={self.root}, with the run's other "
                "dataset keys"
            ) from error

    def bad_among(self, paths: Sequence[str], tell: Tell) -> list[tuple[str, str]]:
        """(path, reason) of the bad ones of the files `paths` below `root`, in their order, by `check`."""
        if self.check == "none":
            return []

        def reason(path: str) -> str | None:
            try:
                self.look(path)
            except BadImage as error:
                return error.reason
            return None

        bad: list[tuple[str, str]] = []
        for done, (path, words) in enumerate(zip(paths, _in_threads(reason, paths), strict=True), start=1):
            bad += [(path, words)] if words is not None else []
            if done % _TOLD_EVERY == 0 or done == len(paths):
                tell(done, len(paths))
        return bad

    def _is_prepared(self, tree: Tree) -> bool:
        about = self.about()
        if about is None or about["tree"] != digest(tree):
            return False
        return about["sample"] == self._contents(sample_of(_paths_in(tree.splits)))

    def _contents(self, paths: Sequence[str]) -> str:
        return digest_of_files(self.root, [part for path in paths for part in self.parts(path)])

    def _verified(self, tree: Tree, tell: Tell) -> tuple[dict[str, list[File]], dict[str, Any]]:
        """The usable files of each split, and `about` of the manifest."""
        paths = _paths_in(tree.splits)
        bad = [*tree.bad, *self.bad_among(paths, tell)]
        where = f"dataset.root={self.root}"
        if bad and self.bad_files == "stop":
            raise BadFiles(where, bad, len(paths) + len(tree.bad))
        left_out = {path for path, _ in bad}
        splits = self.divide(
            {
                name: [file for file in files if file.path not in left_out]
                for name, files in tree.splits.items()
            }
        )
        for name in SPLITS:
            if not splits[name]:
                raise ValueError(
                    f"{where}: the {name} split has no usable image ({len(paths)} image files were found, "
                    f"{len(bad)} of them bad; a split is held out of {self.held_out_of})"
                )
        about = {
            "name": self.name,
            "class_names": list(tree.classes),
            "held_out": [name for name in SPLITS if name not in tree.splits],
            "check": self.check,
            "bad": [list(entry) for entry in bad],
            "others": dict(sorted(tree.others.items())),
            "warnings": [*tree.warnings, *self.lacking(tree.classes, splits)],
            # The same on every machine that has the same files.
            "files": _digest(
                [*tree.classes, self._contents(_paths_in(splits))], splits, ("label", "size"), digest_size=8
            ),
            "tree": digest(tree),
            "sample": self._contents(sample_of(paths)),
        }
        return splits, about


@contextmanager
def _way_out() -> Iterator[None]:
    """Adds the way out to errors of the manifest's folder."""
    try:
        yield
    except OSError as error:
        way_out = "dataset.prepared=FOLDER puts what is known of the files into another folder"
        raise OSError(f"{error}: {way_out}") from error


def digest(tree: Tree) -> str:
    """Digest of names, classes, sizes, times of change and notes: if it changes, files are checked again."""
    notes = [tree.classes, tree.bad, tree.warnings, sorted(tree.others.items())]
    return _digest(notes, tree.splits, ("label", "size", "mtime_ns"), digest_size=16)


def _paths_in(splits: dict[str, list[File]]) -> list[str]:
    return [file.path for files in splits.values() for file in files]


def _digest(head: object, splits: dict[str, list[File]], fields: Sequence[str], *, digest_size: int) -> str:
    seen = hashlib.blake2b(json.dumps(head).encode(), digest_size=digest_size)
    for name, files in splits.items():
        for file in files:
            line = "\0".join([name, file.path, *(str(getattr(file, field)) for field in fields)])
            seen.update(f"{line}\n".encode("utf-8", "surrogateescape"))
    return seen.hexdigest()


# ------------------------------------------------------------------ the manifest


class Paths(Sequence[str]):
    """Paths stored in one array of bytes, which forked processes share: a million of them are not objects."""

    def __init__(self, encoded: np.ndarray) -> None:
        self._encoded = encoded

    def __len__(self) -> int:
        return len(self._encoded)

    def __getitem__(self, index: Any) -> Any:
        """The path number `index` (not a slice), as the file system spells it."""
        return os.fsdecode(bytes(self._encoded[index]))


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """The usable files of each split, with their labels int64 [M], and `about`, facts for people and records.

    about: class_names, samples of each split, held_out (splits drawn from train), bad ([path, reason] of
    files left out), others (files that are no images, by suffix), warnings, check, tree (digest of the files
    that were listed), sample (digest of what some of them hold), and files (digest of names, labels, sizes
    and content of those that are used).
    """

    paths: dict[str, Paths]
    labels: dict[str, Tensor]
    about: dict[str, Any]


def write_manifest(path: Path, splits: dict[str, list[File]], about: dict[str, Any]) -> None:
    """Write it atomically: readers see the old one or all of the new one."""
    samples = {name: len(files) for name, files in splits.items()}
    text = json.dumps({"format": FORMAT, **about, "samples": samples})
    arrays: dict[str, Any] = {"about": np.frombuffer(text.encode(), dtype=np.uint8)}
    for name, files in splits.items():
        arrays[f"{name}_paths"] = np.array([os.fsencode(file.path) for file in files], dtype=bytes)
        arrays[f"{name}_labels"] = np.array([file.label for file in files], dtype=np.int64)
    with replacing(path) as temporary, open(temporary, "wb") as file:
        np.savez(file, **arrays)


@contextmanager
def _archive(path: Path) -> Iterator[Any]:
    """An open NumPy archive; errors of damage name the file."""
    with open(path, "rb") as handle:
        try:
            with np.load(handle, allow_pickle=False) as file:
                yield file
        except _DAMAGE as error:
            words = f"damaged ({error}); delete it and prepare the data set again"
            raise BadFile(f"{path}: {words}") from error


def _about(file: Any) -> dict[str, Any]:
    about = json.loads(file["about"].tobytes())
    if about.get("format") != FORMAT:
        raise ValueError(f"format {about.get('format')}, this version reads {FORMAT}")
    return about


# ------------------------------------------------------------------ what files hold

# The digest of a part of each file notices other files under the same names and sizes. Of each the first
# 64 KiB are read, or less where there are many files (`FIRST_BYTES` of all together, but at least 2 KiB), and
# of what lies beyond two pieces of 2 KiB: one at a place that the file's name decides, and the end. So 4 GiB
# and 4 KiB a file are the most that is read: 8 GB of a million files, whose headers were read before. A
# change in between is not noticed.
HEAD, PIECE = 64 * 1024, 2048  # bytes of a file whose content is digested
FIRST_BYTES = 4 * 1024**3  # of all files together
SAMPLED = 64  # files that are read again before each start


def digest_of_files(root: str, paths: Sequence[str]) -> str:
    """Digest of the files at `paths` below `root`, in their order, those that cannot be read included."""
    seen = hashlib.blake2b(digest_size=8)
    head = max(PIECE, min(HEAD, FIRST_BYTES // max(1, len(paths))))
    for part in _in_threads(lambda path: _digest_of_file(root, path, head), paths):
        seen.update(part)
    return seen.hexdigest()


def _in_threads(work: Callable[[str], Any], paths: Sequence[str]) -> Iterator[Any]:
    """The results of `work` for each path, in their order."""
    with ThreadPoolExecutor(min(16, 2 * (os.cpu_count() or 1))) as pool:  # they mostly wait for the disk
        for start in range(0, len(paths), _TOGETHER):
            yield from pool.map(work, paths[start : start + _TOGETHER])


def sample_of(paths: Sequence[str]) -> list[str]:
    """`SAMPLED` of the paths, evenly spread over their order; all of fewer."""
    count = min(SAMPLED, len(paths))
    return [paths[number * len(paths) // count] for number in range(count)]


def _digest_of_file(root: str, path: str, head: int) -> bytes:
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
