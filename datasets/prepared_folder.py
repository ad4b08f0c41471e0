"""Data sets of image files in folders: looked at once by `prepare`, then only read, by all ranks.

`prepare` lists and checks the files, decides which are left out and which make a missing split, and writes
that into a manifest. `load` reads nothing else: all ranks have the same samples in the same order.
"""

import dataclasses
import hashlib
import json
import os
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, TypeVar

from .data import SPLITS, Data
from .dataset import OWN_FOLDER, Dataset, DatasetInfo, Tell, silent
from .image_files import ImageFiles
from .image_formats import looks_whole
from .manifest import Manifest, read_about
from .pixels import BadImage, PixelRules, decode, header
from .preparation import locked
from .transforms import IMAGENET_MEAN, IMAGENET_STD, CentreCrop, Change, Normalise, recipe
from .tree import File, Tree, listed_classes

CHECKS = ("headers", "decode", "none")
POLICIES = ("stop", "skip")
SHOWN = 20  # bad files named in an error
_PIECE = 256  # files given to a thread at a time

A = TypeVar("A")
B = TypeVar("B")


@dataclass(frozen=True, kw_only=True)
class Checked:
    """The result of checking files. bad: (path, reason); conversions: number of files by rule of `pixels`."""

    bad: list[tuple[str, str]]
    conversions: Counter[str]


def in_threads(look: Callable[[A], B], items: Sequence[A], *, threads: int, tell: Tell) -> Iterable[B]:
    """`look` of every item, in order, by `threads` threads; few pieces are queued at a time."""
    with ThreadPoolExecutor(threads) as pool:
        for start in range(0, len(items), _PIECE * threads):
            piece = items[start : start + _PIECE * threads]
            yield from pool.map(look, piece)
            tell(start + len(piece), len(items))


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
    bad_files: stop names them, skip leaves them out and counts them. Raises ValueError for a value out of
    range.
    """

    root: str
    prepared: str = ""
    check: str = "headers"
    bad_files: str = "stop"

    loading_keys: ClassVar[frozenset[str]]
    """Keys that change samples or places, but not which files are in which split."""
    held_out_of: ClassVar[str]
    """The source of a missing split, in words for a message."""

    def __post_init__(self) -> None:
        for key, allowed in (("check", CHECKS), ("bad_files", POLICIES)):
            if getattr(self, key) not in allowed:
                raise ValueError(
                    f"dataset.{key}={getattr(self, key)}: unknown; must be one of {', '.join(allowed)}"
                )

    @property
    @abstractmethod
    def shape(self) -> tuple[int, int, int]:
        """Of an image, [C, H, W]."""

    @abstractmethod
    def tree(self) -> Tree:
        """The files below `root`. Raises FileNotFoundError, ValueError if the layout is wrong."""

    @abstractmethod
    def divide(self, splits: dict[str, list[File]]) -> dict[str, list[File]]:
        """Train, validation and test of the usable files; missing splits are held out of train."""

    @abstractmethod
    def look(self, path: str) -> tuple[str, ...]:
        """The names of the rules (`pixels`) that apply to the file at `path` below `root`. Raises BadImage.

        check=headers reads its header, and all of a JPEG or PNG file without its end mark; decode all of it.
        """

    def reason(self, error: BadImage, path: str) -> str:
        """Why the file at `path` below `root` is bad."""
        return error.reason

    def examine(self, paths: Sequence[str], tell: Tell) -> Checked:
        """Check the files `paths` below `root` according to `check`; results are in their order."""
        checked = Checked(bad=[], conversions=Counter())
        if self.check == "none":
            return checked

        def look(path: str) -> tuple[str, str | None, tuple[str, ...]]:
            try:
                return path, None, self.look(path)
            except BadImage as error:
                return path, self.reason(error, path), ()

        for path, reason, conversions in in_threads(look, paths, threads=threads(), tell=tell):
            if reason is None:
                checked.conversions.update(conversions)
            else:
                checked.bad.append((path, reason))
        return checked

    def lacking(self, tree: Tree, usable: dict[str, list[File]], splits: dict[str, list[File]]) -> list[str]:
        """Warnings about classes without images, because of bad files or of their size.

        usable: by split of `tree`, the files without bad ones; splits: the result of `divide`.
        """
        return []

    def info(self) -> DatasetInfo:
        """See `Dataset.info`."""
        about = self.about()
        if about is None:
            return DatasetInfo(shape=self.shape)
        return DatasetInfo(shape=self.shape, classes=len(about["class_names"]), samples=about["samples"])

    def folder(self) -> str:
        """See `Dataset.folder`."""
        return self.root

    def beside(self) -> Path:
        """See `Dataset.beside`."""
        return self.manifest_file.with_suffix("")

    def fingerprint(self) -> str:
        """See `Dataset.fingerprint`: of names, sizes and times of the files, once they are prepared."""
        about = self.about()
        return repr(self) if about is None else f"{self.manifest_file.name} {about['tree']}"

    @property
    def manifest_file(self) -> Path:
        """The file of the manifest for these keys."""
        values = {k: v for k, v in dataclasses.asdict(self).items() if k not in self.loading_keys}
        if self.prepared:  # which may hold manifests of other folders, too
            values["root"] = os.path.abspath(self.root)
        text = json.dumps(values, sort_keys=True).encode()
        folder = Path(self.prepared) if self.prepared else Path(self.root) / OWN_FOLDER
        return folder / f"{self.name}-{hashlib.blake2b(text, digest_size=8).hexdigest()}.npz"

    def about(self) -> dict[str, Any] | None:
        """Facts about the prepared data set (see `manifest.Manifest`); None if it is not prepared."""
        try:
            return read_about(self.manifest_file)
        except OSError:
            return None

    def prepare(self, tell: Tell = silent) -> None:
        """Check the files and write the manifest, unless there is one of the same files.

        One process at a time does so, others wait. Raises FileNotFoundError, BadFiles with every bad file and
        its reason, ValueError for other problems, OSError if the manifest cannot be written.
        """
        tree = self.tree()
        if self._is_prepared(tree):
            return
        with ExitStack() as held:
            with _writing():
                held.enter_context(locked(self.manifest_file.parent))
            if not self._is_prepared(tree):  # by the process that held the lock before
                manifest = self._prepared(tree, tell)
                with _writing():
                    manifest.write(self.manifest_file)

    def manifest(self) -> Manifest:
        """The manifest that `prepare` wrote. Raises FileNotFoundError if there is none, OSError."""
        try:
            return Manifest.read(self.manifest_file)
        except FileNotFoundError as error:
            raise FileNotFoundError(
                f"dataset.root={self.root}: not prepared with these keys (no {self.manifest_file}); run "
                f"daso-bench prepare dataset={self.name} dataset.root={self.root}, with the run's other "
                "dataset keys"
            ) from error

    def _is_prepared(self, tree: Tree) -> bool:
        about = self.about()
        return about is not None and about["tree"] == digest(tree)

    def _prepared(self, tree: Tree, tell: Tell) -> Manifest:
        paths = [file.path for files in tree.splits.values() for file in files]
        checked = self.examine(paths, tell)
        bad = [*tree.bad, *checked.bad]
        where = f"dataset.root={self.root}"
        if bad and self.bad_files == "stop":
            raise BadFiles(where, bad, len(paths) + len(tree.bad))
        left_out = {path for path, _ in bad}
        usable = {
            name: [file for file in files if file.path not in left_out] for name, files in tree.splits.items()
        }
        splits = self.divide(usable)
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
            "conversions": dict(sorted(checked.conversions.items())),
            "others": dict(sorted(tree.others.items())),
            "warnings": [*tree.warnings, *self.lacking(tree, usable, splits)],
            "files": content(tree.classes, splits),
            "tree": digest(tree),
        }
        return Manifest.of(splits, about)


@contextmanager
def _writing() -> Iterator[None]:
    """Adds the way out to errors of the manifest's folder."""
    try:
        yield
    except OSError as error:
        raise OSError(
            f"{error}: dataset.prepared=FOLDER puts what is known of the files into another folder"
        ) from error


def digest(tree: Tree) -> str:
    """Digest of names, classes, sizes, times of change and notes: if it changes, files are checked again."""
    seen = hashlib.blake2b(digest_size=16)
    notes = [tree.classes, tree.bad, tree.warnings, sorted(tree.others.items())]
    seen.update(json.dumps(notes).encode())
    for name, files in tree.splits.items():
        for file in files:
            line = f"{name}\0{file.path}\0{file.label}\0{file.size}\0{file.mtime_ns}\n"
            seen.update(line.encode("utf-8", "surrogateescape"))
    return seen.hexdigest()


def content(classes: Sequence[str], splits: dict[str, list[File]]) -> str:
    """Digest of the samples of a run: the same on every machine that has the same files."""
    seen = hashlib.blake2b(json.dumps(list(classes)).encode(), digest_size=8)
    for name, files in splits.items():
        for file in files:
            line = f"{name}\0{file.path}\0{file.label}\0{file.size}\n"
            seen.update(line.encode("utf-8", "surrogateescape"))
    return seen.hexdigest()


def threads() -> int:
    """Number of threads that check files, which mostly wait for the disk."""
    return min(16, 2 * len(os.sched_getaffinity(0))) if hasattr(os, "sched_getaffinity") else 4


# ------------------------------------------------------------------ a label for each image


@dataclass(frozen=True, kw_only=True)
class FolderDataset(PreparedFolder, ABC):
    """Images [channels, crop, crop] in files below `root`.

    root, prepared, check, bad_files: see `PreparedFolder`; channels: 1 or 3; resize, crop: pixels of the
    shorter side, and of the square cut from the centre; background: under transparent pixels, white or black;
    augment: random changes of training images (`transforms.recipe`), applied to the square, except for
    resized_crop_flip, which cuts from the whole image; mean, std: per channel, on a scale of 0 to 1.
    Raises ValueError for a value out of range.
    """

    channels: int = 3
    resize: int = 256
    crop: int = 224
    background: str = "white"
    augment: str = "none"
    mean: tuple[float, ...] = IMAGENET_MEAN
    std: tuple[float, ...] = IMAGENET_STD

    upright: ClassVar[bool]  # whether EXIF orientation is applied
    held_out_of: ClassVar[str] = "classes with 3 images or more"
    loading_keys = frozenset(("root", "prepared", "resize", "crop", "background", "augment", "mean", "std"))

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("rules", "transform", "normalise", "change"):
            getattr(self, name)  # each checks its values

    @property
    def rules(self) -> PixelRules:
        """From file to pixels."""
        return PixelRules(channels=self.channels, background=self.background, upright=self.upright)

    @property
    def transform(self) -> CentreCrop:
        """From pixels of any size to pixels of one size."""
        return CentreCrop(resize=self.resize, crop=self.crop)

    @property
    def change(self) -> Change | None:
        """From pixels of any size to pixels for training; None without random changes."""
        change = recipe(self.augment, (self.crop, self.crop))
        if change is None or self.augment == "resized_crop_flip":
            return change
        from torchvision.transforms import v2  # `recipe` has imported it

        return v2.Compose([self.transform, change])

    @property
    def normalise(self) -> Normalise:
        """From pixels to the input of the model."""
        return Normalise(mean=self.mean, std=self.std, channels=self.channels)

    @property
    def shape(self) -> tuple[int, int, int]:
        """Of an image, [C, H, W]."""
        return self.channels, self.crop, self.crop

    def look(self, path: str) -> tuple[str, ...]:
        """See `PreparedFolder.look`."""
        file = f"{self.root}/{path}"
        about = header(file, self.rules)
        if self.check == "decode" or not looks_whole(file):
            decode(file, self.rules)
        return about.conversions

    def lacking(self, tree: Tree, usable: dict[str, list[File]], splits: dict[str, list[File]]) -> list[str]:
        """Classes whose files in a split are all bad, or that have none in a split held out of train."""
        warnings = []
        for name, files in tree.splits.items():
            gone = {file.label for file in files} - {file.label for file in usable[name]}
            warnings += [
                f"{name}: every image of class {tree.classes[label]!r} is bad" for label in sorted(gone)
            ]
        present = {file.label for file in usable["train"]}
        for name, files in splits.items():
            names = [tree.classes[label] for label in sorted(present - {file.label for file in files})]
            if name not in tree.splits and files and names:  # a split without any image is an error
                warnings.append(f"{name} (held out of train): no image of {listed_classes(names)}")
        return warnings

    def load(self) -> Data:
        """See `Dataset.load`."""
        manifest = self.manifest()
        splits = {
            name: ImageFiles(
                root=self.root,
                shape=self.shape,
                paths=manifest.paths[name],
                labels=manifest.labels[name],
                rules=self.rules,
                transform=self.transform,
                normalise=self.normalise,
                change=self.change if name == "train" else None,
            )
            for name in SPLITS
        }
        return Data(
            name=self.name,
            classes=len(manifest.about["class_names"]),
            shape=self.shape,
            files=manifest.about["files"],
            **splits,
        )
