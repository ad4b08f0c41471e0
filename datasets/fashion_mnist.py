"""70,000 grey images of clothes, 28×28 pixels, 10 classes: the study set of this project.

Source: H. Xiao, K. Rasul, R. Vollgraf, Fashion-MNIST: a Novel Image Dataset for Benchmarking Machine Learning
Algorithms, 2017, arXiv:1708.07747.
"""

import os
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import torch
from torch import Tensor

from .data import Data, Split
from .idx import read_idx
from .sampler import stream_seed

DEBIAN_FOLDER = Path("/usr/share/datasets/fashion-mnist")  # package dataset-fashion-mnist
PARTS = {"train": 60_000, "t10k": 10_000}
NAMES = [f"{part}-{kind}-ubyte" for part in PARTS for kind in ("images-idx3", "labels-idx1")]
VALIDATION_PER_CLASS = 500
SPLIT_SEED = 0  # frozen: another value is another data set
# Mean and standard deviation of the training split; pixels are 0 to 255.
MEAN, STD = 72.93, 90.03


@dataclass(frozen=True, kw_only=True)
class FashionMNIST:
    """55,000 training, 5,000 validation and 10,000 test images [1, 28, 28], 10 classes.

    root: folder that has, or gets, torchvision's layout FashionMNIST/raw; relative to the working folder;
    download: fetch the files (30 MB) when neither root nor Debian's package has them.
    """

    root: str = "data"
    download: bool = False

    train_samples: ClassVar[int] = 55_000

    def prepare(self) -> None:
        """Makes sure that the files are on this machine, by downloading if asked to.

        Raises FileNotFoundError, with the ways out, when they are not.
        """
        self._files()

    def load(self) -> Data:
        """Reads the files; raises as `prepare` does, and OSError when a file is damaged."""
        files = self._files()
        images, labels = _read(files, "train")
        test_images, test_labels = _read(files, "t10k")
        train, validation = split_by_class(labels, VALIDATION_PER_CLASS)

        def split(images: Tensor, labels: Tensor) -> Split:
            return Split(images=images, labels=labels, mean=(MEAN,), std=(STD,))

        return Data(
            name="fashion_mnist",
            classes=10,
            shape=(1, 28, 28),
            train=split(images[train], labels[train]),
            validation=split(images[validation], labels[validation]),
            test=split(test_images, test_labels),
        )

    def _files(self) -> dict[str, Path]:
        own = Path(self.root) / "FashionMNIST" / "raw"
        found = find_files(own) or find_files(DEBIAN_FOLDER)
        if found is None and self.download:
            _download(own)
            found = find_files(own)
        if found is None:
            raise FileNotFoundError(
                f"Fashion-MNIST is neither in {own.absolute()} nor in {DEBIAN_FOLDER}: "
                f"put torchvision's copy below dataset.root={self.root}, or install Debian's package "
                "dataset-fashion-mnist, or set dataset.download=true"
            )
        return found


def find_files(folder: Path) -> dict[str, Path] | None:
    """The four files of `folder`, plain or .gz, by their plain name; None when one is missing."""
    found: dict[str, Path] = {}
    for name in NAMES:
        for path in (folder / name, folder / f"{name}.gz"):
            if path.is_file():
                found.setdefault(name, path)
    return found if len(found) == len(NAMES) else None


def split_by_class(labels: Tensor, held_out_per_class: int) -> tuple[Tensor, Tensor]:
    """Indices int64, ascending, of (the rest, the held-out samples), as many of each class, drawn once."""
    generator = torch.Generator().manual_seed(stream_seed(SPLIT_SEED, "fashion_mnist", "validation"))
    order = torch.randperm(len(labels), generator=generator)
    held_out = torch.zeros(len(labels), dtype=torch.bool)
    for label in labels.unique():
        held_out[order[labels[order] == label][:held_out_per_class]] = True
    return (~held_out).nonzero().flatten(), held_out.nonzero().flatten()


def _read(files: dict[str, Path], part: str) -> tuple[Tensor, Tensor]:
    image_file, label_file = files[f"{part}-images-idx3-ubyte"], files[f"{part}-labels-idx1-ubyte"]
    images, labels = read_idx(image_file), read_idx(label_file)
    for file, array, shape in (
        (image_file, images, (PARTS[part], 28, 28)),
        (label_file, labels, (PARTS[part],)),
    ):
        if array.shape != shape:
            raise OSError(f"{file}: shape {list(array.shape)}: must be {list(shape)}")
    if labels.max() > 9:
        raise OSError(f"{label_file}: label {labels.max()}: must be 0 to 9")
    return torch.from_numpy(images).unsqueeze(1), torch.from_numpy(labels).to(torch.int64)


def _download(folder: Path) -> None:
    """Fetches the files into `folder`.

    A file gets its name only when it is complete, so two processes that download at once, or one that is
    killed, do no harm.
    """
    from torchvision.datasets import FashionMNIST as TorchvisionFashionMNIST

    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="download-", dir=folder) as temporary:
        try:
            TorchvisionFashionMNIST(temporary, download=True)
        except (RuntimeError, OSError) as error:
            raise FileNotFoundError(
                f"dataset.download=true: Fashion-MNIST could not be fetched: {error}"
            ) from error
        for name in NAMES:
            complete = Path(temporary) / "FashionMNIST" / "raw" / name
            if complete.is_file():
                os.replace(complete, folder / name)
            else:
                shutil.move(f"{complete}.gz", folder / f"{name}.gz")
