"""What folders of image files have in common: looked at once by `prepare`, then only read, by all ranks.

`prepare` lists and checks the files, decides what is left out and which files make a missing split, and
writes that down (`manifest`). `load` reads nothing else: all ranks have the same samples in the same order.
"""

import dataclasses
import hashlib
import json
import os
from abc import ABC, abstractmethod
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from .augmentation import Chain, Change, recipe
from .checking import CHECKS, POLICIES, Tell, check, refusal, silent
from .data import SPLITS, Data
from .image_files import ImageFiles
from .manifest import Manifest, read_about
from .pixels import PixelRules
from .preparation import locked
from .transforms import IMAGENET_MEAN, IMAGENET_STD, CentreCrop, Normalise
from .tree import File, Tree

OWN_FOLDER = ".daso-bench"
# What changes pixels or where things lie, and not which files are in which split.
_NOT_IN_MANIFEST = ("root", "prepared", "resize", "crop", "background", "augment", "mean", "std")


@dataclass(frozen=True, kw_only=True)
class FolderDataset(ABC):
    """Images [channels, crop, crop] in files below `root`.

    root: the folder, relative to the working folder; prepared: where the manifest is kept, empty for the
    folder .daso-bench in `root`; check: headers, decode or none, what is read of each file before training;
    bad_files: stop names them, skip leaves them out and counts them; channels: 1 or 3; resize, crop: pixels
    of the shorter side, and of the square cut from the centre; background: under transparent pixels, white
    or black; augment: random changes of training images (`augmentation.recipe`), of the square but for
    resized_crop_flip, which cuts its own from the whole image; mean, std: per channel, on a scale of 0 to 1.
    Raises ValueError for a value out of range.
    """

    root: str
    prepared: str = ""
    check: str = "headers"
    bad_files: str = "stop"
    channels: int = 3
    resize: int = 256
    crop: int = 224
    background: str = "white"
    augment: str = "none"
    mean: tuple[float, ...] = IMAGENET_MEAN
    std: tuple[float, ...] = IMAGENET_STD

    name: ClassVar[str]
    upright: ClassVar[bool]  # whether EXIF orientation is applied

    def __post_init__(self) -> None:
        for key, allowed in (("check", CHECKS), ("bad_files", POLICIES)):
            if getattr(self, key) not in allowed:
                raise ValueError(
                    f"dataset.{key}={getattr(self, key)}: unknown; must be one of {', '.join(allowed)}"
                )
        for made in ("rules", "transform", "normalise", "change"):
            getattr(self, made)  # each checks its values

    @abstractmethod
    def tree(self) -> Tree:
        """What lies below `root`. Raises FileNotFoundError, ValueError naming what does not fit."""

    @abstractmethod
    def divide(self, splits: dict[str, list[File]]) -> dict[str, list[File]]:
        """Train, validation and test of the usable files; what is missing is held out of train."""

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
        """From pixels of any size to pixels to train on; None where they are not changed at random."""
        change = recipe(self.augment, (self.crop, self.crop))
        if change is None or self.augment == "resized_crop_flip":
            return change
        return Chain(self.transform, change)

    @property
    def normalise(self) -> Normalise:
        """From pixels to what the model takes."""
        return Normalise(mean=self.mean, std=self.std, channels=self.channels)

    @property
    def shape(self) -> tuple[int, int, int]:
        """Of an image, [C, H, W]."""
        return self.channels, self.crop, self.crop

    @property
    def classes(self) -> int | None:
        """How many classes there are; None while nothing is prepared. The sizes below likewise."""
        about = self.about()
        return None if about is None else len(about["class_names"])

    @property
    def train_samples(self) -> int | None:
        """Size of the training split."""
        return self._samples("train")

    @property
    def validation_samples(self) -> int | None:
        """Size of the validation split."""
        return self._samples("validation")

    @property
    def test_samples(self) -> int | None:
        """Size of the test split."""
        return self._samples("test")

    @property
    def manifest_file(self) -> Path:
        """Where the manifest of this data set with these keys is, or will be."""
        values = {k: v for k, v in dataclasses.asdict(self).items() if k not in _NOT_IN_MANIFEST}
        if self.prepared:  # beside those of other folders
            values["root"] = os.path.abspath(self.root)
        text = json.dumps(values, sort_keys=True).encode()
        folder = Path(self.prepared) if self.prepared else Path(self.root) / OWN_FOLDER
        return folder / f"{self.name}-{hashlib.blake2b(text, digest_size=8).hexdigest()}.npz"

    def about(self) -> dict[str, Any] | None:
        """What is known of the prepared data set (see `manifest.Manifest`); None while there is nothing."""
        try:
            return read_about(self.manifest_file)
        except OSError:
            return None

    def prepare(self, tell: Tell = silent) -> None:
        """Looks at the files and writes the manifest, unless one of the same files is there.

        One process at a time does so, others wait; `tell` hears how many files are done.
        Raises FileNotFoundError, ValueError naming what is wrong and every bad file with its reason (the
        first 20), OSError where the manifest cannot be written.
        """
        tree = self.tree()
        if self._is_prepared(tree):
            return
        try:
            with locked(self.manifest_file.parent):
                if not self._is_prepared(tree):  # by whom this process waited for
                    self._prepared(tree, tell).write(self.manifest_file)
        except OSError as error:
            raise OSError(
                f"{error}: dataset.prepared=FOLDER puts what is known of the files into another folder"
            ) from error

    def load(self) -> Data:
        """The splits, their files unread. Raises FileNotFoundError where `prepare` has not been, OSError."""
        try:
            manifest = Manifest.read(self.manifest_file)
        except FileNotFoundError as error:
            raise FileNotFoundError(
                f"dataset.root={self.root}: not prepared with these keys (no {self.manifest_file}); run "
                f"daso-bench prepare dataset={self.name} dataset.root={self.root}, with the run's other "
                "dataset keys"
            ) from error
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
        return Data(name=self.name, classes=len(manifest.about["class_names"]), shape=self.shape, **splits)

    def _samples(self, split: str) -> int | None:
        about = self.about()
        return None if about is None else about["samples"][split]

    def _is_prepared(self, tree: Tree) -> bool:
        about = self.about()
        return about is not None and about["tree"] == digest(tree)

    def _prepared(self, tree: Tree, tell: Tell) -> Manifest:
        root = Path(self.root)
        paths = [file.path for files in tree.splits.values() for file in files]
        checked = check(root, paths, self.check, self.rules, threads=threads(), tell=tell)
        bad = [*tree.bad, *checked.bad]
        where = f"dataset.root={self.root}"
        if bad and self.bad_files == "stop":
            raise refusal(where, bad, len(paths) + len(tree.bad))
        left_out = {path for path, _ in bad}
        usable = {
            name: [file for file in files if file.path not in left_out] for name, files in tree.splits.items()
        }
        splits = self.divide(usable)
        for name in SPLITS:
            if not splits[name]:
                raise ValueError(
                    f"{where}: the {name} split has no usable image ({len(paths)} image files were found, "
                    f"{len(bad)} of them bad; a split is held out of classes with 3 images or more)"
                )
        about = {
            "name": self.name,
            "class_names": list(tree.classes),
            "held_out": [name for name in SPLITS if name not in tree.splits],
            "check": self.check,
            "bad": [list(entry) for entry in bad],
            "conversions": dict(sorted(checked.conversions.items())),
            "others": dict(sorted(tree.others.items())),
            "warnings": [*tree.warnings, *_classes_lost(tree, usable)],
            "tree": digest(tree),
        }
        return Manifest.of(splits, about)


def digest(tree: Tree) -> str:
    """Of names, classes, sizes and times of change: another one, and the files are looked at again."""
    seen = hashlib.blake2b(digest_size=16)
    seen.update(json.dumps([tree.classes, tree.bad, sorted(tree.others.items())]).encode())
    for name, files in tree.splits.items():
        for file in files:
            line = f"{name}\0{file.path}\0{file.label}\0{file.size}\0{file.mtime_ns}\n"
            seen.update(line.encode("utf-8", "surrogateescape"))
    return seen.hexdigest()


def threads() -> int:
    """For looking at files, which is mostly waiting for a disk."""
    return min(16, 2 * len(os.sched_getaffinity(0))) if hasattr(os, "sched_getaffinity") else 4


def _classes_lost(tree: Tree, usable: dict[str, list[File]]) -> list[str]:
    """Classes that had files in a split, all of them bad."""
    told = []
    for name, files in tree.splits.items():
        lost = {file.label for file in files} - {file.label for file in usable[name]}
        told += [f"{name}: every image of class {tree.classes[label]!r} is bad" for label in sorted(lost)]
    return told
