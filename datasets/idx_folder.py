"""The four IDX files of an MNIST-like data set: where they are looked for, how they are read and fetched."""

import hashlib
import os
import shutil
from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor

from .augmentation import Change
from .bad_file import BadFile
from .data import Data, Split
from .fetching import elsewhere, fetching
from .holdout import split_by_class
from .idx import content_of, read_idx
from .preparation import locked, scratch

PARTS = {"train": 60_000, "t10k": 10_000}
NAMES = [f"{part}-{kind}-ubyte" for part in PARTS for kind in ("images-idx3", "labels-idx1")]
VALIDATION_PER_CLASS = 500


def find_files(folder: Path) -> dict[str, Path] | None:
    """The four files of `folder`, plain or .gz, by their plain name; None when one is missing."""
    found: dict[str, Path] = {}
    for name in NAMES:
        for path in (folder / name, folder / f"{name}.gz"):
            if path.is_file():
                found.setdefault(name, path)
    return found if len(found) == len(NAMES) else None


def not_there(title: str, folder: Path) -> str:
    """Of a folder in which `find_files` finds nothing: that it is not there, or which files it lacks."""
    names = [path.name.removesuffix(".gz") for path in folder.iterdir()] if folder.is_dir() else []
    lacking = [name for name in NAMES if name not in names]
    if len(lacking) == len(NAMES):
        return f"{title} is not in {folder.absolute()}"
    return f"{title} is incomplete: {folder.absolute()} has no {', no '.join(lacking)} (nor .gz)"


def check_files(files: dict[str, Path], md5s: Mapping[str, str]) -> None:
    """Read them all; md5s: of the decompressed content, by plain name. Raises BadFile naming a wrong one."""
    for part in PARTS:
        _read(files, part, md5s)


def load_files(
    files: dict[str, Path],
    name: str,
    mean: float,
    std: float,
    *,
    md5s: Mapping[str, str],
    augment: Change | None = None,
) -> Data:
    """The data set called `name`: 500 training images of each class are its validation split.

    mean, std: of the training split; pixels are 0 to 255. md5s: see `check_files`. augment: random changes of
    training images. Raises BadFile naming one that is damaged or another's.
    """
    images, labels = _read(files, "train", md5s)
    test_images, test_labels = _read(files, "t10k", md5s)
    train, validation = split_by_class(labels, VALIDATION_PER_CLASS, name)

    def split(images: Tensor, labels: Tensor, augment: Change | None = None) -> Split:
        return Split(images=images, labels=labels, mean=(mean,), std=(std,), augment=augment)

    return Data(
        name=name,
        classes=10,
        shape=(1, 28, 28),
        train=split(images[train], labels[train], augment),
        validation=split(images[validation], labels[validation]),
        test=split(test_images, test_labels),
    )


def fetch_files(root: Path, title: str, name: str) -> None:
    """Fetch torchvision's data set `title` into its place below `root`, alone among all processes.

    A file gets its name only when it is complete, so a process that is killed does no harm.
    Raises ConnectionError saying how to come by the files without a network.
    """
    import torchvision.datasets

    folder = root / title / "raw"
    with locked(root):
        if find_files(folder) is not None:  # by the process that had the lock before
            return
        with scratch(root) as temporary:
            with fetching(title, elsewhere(name, str(root), f"torchvision's folder {title}/raw")):
                getattr(torchvision.datasets, title)(str(temporary), download=True)
            folder.mkdir(parents=True, exist_ok=True)
            for file in NAMES:
                complete = temporary / title / "raw" / file
                if complete.is_file():
                    os.replace(complete, folder / file)
                else:
                    shutil.move(f"{complete}.gz", folder / f"{file}.gz")


def _read(files: dict[str, Path], part: str, md5s: Mapping[str, str]) -> tuple[Tensor, Tensor]:
    names = (f"{part}-images-idx3-ubyte", f"{part}-labels-idx1-ubyte")
    image_file, label_file = (files[name] for name in names)
    contents = [content_of(files[name]) for name in names]
    images, labels = read_idx(image_file, contents[0]), read_idx(label_file, contents[1])
    for file, array, shape in (
        (image_file, images, (PARTS[part], 28, 28)),
        (label_file, labels, (PARTS[part],)),
    ):
        if array.shape != shape:
            raise BadFile(f"{file}: shape {list(array.shape)}: must be {list(shape)}")
    if labels.max() > 9:
        raise BadFile(f"{label_file}: label {labels.max()}: must be 0 to 9")
    for name, content in zip(names, contents, strict=True):
        found = hashlib.md5(content, usedforsecurity=False).hexdigest()
        if found != md5s[name]:
            raise BadFile(
                f"{files[name]}: its content has the MD5 {found}, not {md5s[name]}: damaged, or another data "
                "set's (MNIST's and Fashion-MNIST's files have the same names); delete it and get it again"
            )
    return torch.from_numpy(images).unsqueeze(1), torch.from_numpy(labels).to(torch.int64)
