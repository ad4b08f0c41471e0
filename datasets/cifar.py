"""CIFAR-10 and CIFAR-100: 60,000 colour images of 32×32 pixels each, of 10 and of 100 classes.

Source: A. Krizhevsky, Learning Multiple Layers of Features from Tiny Images, 2009. torchvision's
classes read its layout; all files are checked by MD5.
"""

import shutil
import tarfile
import warnings
from abc import ABC
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from .atomic_files import BadFile, locked, scratch
from .data import Data
from .dataset import Tell, silent
from .downloads import DownloadedDataset, elsewhere, fetching


@dataclass(frozen=True, kw_only=True)
class Cifar(DownloadedDataset, ABC):
    """45,000 training, 5,000 validation and 10,000 test images [3, 32, 32]; the archive has 170 MB."""

    shape: ClassVar[tuple[int, int, int]] = (3, 32, 32)
    train_images: ClassVar[int] = 50_000
    test_images: ClassVar[int] = 10_000
    validation_share: ClassVar[int] = 10

    def prepare(self, tell: Tell = silent) -> None:
        """Check that the files exist and are whole; unpack or download the archive if necessary.

        One process at a time does so, others wait. Raises FileNotFoundError with the ways out if there are no
        files, ConnectionError without a network, BadFile naming a damaged file.
        """
        damage = self._damage()
        if damage is None:
            return
        root = Path(self.root)
        archive = root / self._torchvision().filename
        if not archive.is_file() and not self.download:
            raise damage
        with locked(root):
            if self._damage() is None:  # another process has unpacked it
                return
            with scratch(root) as temporary:
                if not _has_md5(archive, self._torchvision().tgz_md5):
                    self._fetch(archive, temporary)
                self._unpack(archive, temporary)

    def load(self) -> Data:
        """See `Dataset.load`. Raises FileNotFoundError, or BadFile naming a damaged file."""
        damage = self._damage()
        if damage is not None:
            raise damage
        return self.in_splits(*self._read(train=True), *self._read(train=False))

    def _torchvision(self) -> Any:
        import torchvision.datasets  # here: other data sets do not need it

        return getattr(torchvision.datasets, self.torchvision_name())

    def _damage(self, below: Path | None = None) -> OSError | None:
        """The error for missing or damaged files below `below` (default: the root); None if all are whole."""
        known = self._torchvision()
        folder = Path(below or self.root) / known.base_folder
        if not folder.is_dir():
            return self._missing()
        lists = [*known.train_list, *known.test_list, [known.meta["filename"], known.meta["md5"]]]
        for name, md5 in lists:
            if not (folder / name).is_file():
                return FileNotFoundError(f"{folder / name}: missing; {self._again()}")
            if not _has_md5(folder / name, md5):
                return BadFile(
                    f"{folder / name}: damaged or cut short (its MD5 is not {md5}); {self._again()}"
                )
        return None

    def _again(self) -> str:
        return f"run daso-bench prepare dataset={self.name} dataset.root={self.root} to get it again"

    def _missing(self) -> FileNotFoundError:
        return FileNotFoundError(
            f"{self.title} is not in {Path(self.root).absolute()}: "
            f"{self._again().removesuffix(' again')}, or set dataset.download=true; "
            f"without a network, {self._elsewhere()}"
        )

    def _elsewhere(self) -> str:
        known = self._torchvision()
        return elsewhere(self.name, self.root, f"{known.filename} (MD5 {known.tgz_md5})")

    def _fetch(self, archive: Path, temporary: Path) -> None:
        known = self._torchvision()
        if not self.download:
            raise BadFile(
                f"{archive}: damaged or cut short (its MD5 is not {known.tgz_md5}); {self._elsewhere()}"
            )
        from torchvision.datasets.utils import download_url

        with fetching(self.title, self._elsewhere()):
            download_url(known.url, str(temporary), known.filename, known.tgz_md5)
        (temporary / known.filename).replace(archive)

    def _unpack(self, archive: Path, temporary: Path) -> None:
        """Unpack the archive; its folder has a temporary name until every file in it is whole."""
        folder = self._torchvision().base_folder
        with tarfile.open(archive) as file:
            file.extractall(temporary, filter="data")
        damage = self._damage(temporary)
        if damage is not None:
            raise damage
        final = Path(self.root) / folder
        if final.exists():  # an earlier, incomplete one
            shutil.rmtree(final)
        (temporary / folder).replace(final)

    def _read(self, *, train: bool) -> tuple[Tensor, Tensor]:
        with warnings.catch_warnings():
            # The files were pickled by a NumPy of 2009; newer ones warn about it.
            warnings.simplefilter("ignore", np.exceptions.VisibleDeprecationWarning)
            dataset = self._torchvision()(self.root, train=train)
        images = torch.from_numpy(dataset.data).permute(0, 3, 1, 2).contiguous()
        return images, torch.tensor(dataset.targets, dtype=torch.int64)


@dataclass(frozen=True, kw_only=True)
class CIFAR10(Cifar):
    """45,000 training, 5,000 validation and 10,000 test images [3, 32, 32], 10 classes."""

    name: ClassVar[str] = "cifar10"
    title: ClassVar[str] = "CIFAR-10"
    classes: ClassVar[int] = 10
    mean: ClassVar[tuple[float, ...]] = (125.31, 122.95, 113.87)
    std: ClassVar[tuple[float, ...]] = (62.99, 62.09, 66.70)


@dataclass(frozen=True, kw_only=True)
class CIFAR100(Cifar):
    """45,000 training, 5,000 validation and 10,000 test images [3, 32, 32], 100 classes."""

    name: ClassVar[str] = "cifar100"
    title: ClassVar[str] = "CIFAR-100"
    classes: ClassVar[int] = 100
    mean: ClassVar[tuple[float, ...]] = (129.30, 124.07, 112.43)
    std: ClassVar[tuple[float, ...]] = (68.17, 65.39, 70.42)


def _has_md5(path: Path, md5: str) -> bool:
    from torchvision.datasets.utils import check_integrity

    return check_integrity(path, md5)
