"""CIFAR-10 and CIFAR-100: 60,000 colour images of 32×32 pixels each, of 10 and of 100 classes.

Source: A. Krizhevsky, Learning Multiple Layers of Features from Tiny Images, 2009. torchvision's
classes download, unpack and read them, and compare the MD5 of every file each time.
"""

import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from .atomic_files import BadFile, locked
from .data import Data
from .dataset import Tell, silent
from .downloads import DownloadedDataset, fetching


@dataclass(frozen=True, kw_only=True)
class CIFAR10(DownloadedDataset):
    """45,000 training, 5,000 validation and 10,000 test images [3, 32, 32], 10 classes.

    The archive has 170 MB.
    """

    name: ClassVar[str] = "cifar10"
    title: ClassVar[str] = "CIFAR-10"
    classes: ClassVar[int] = 10
    mean: ClassVar[tuple[float, ...]] = (125.31, 122.95, 113.87)
    std: ClassVar[tuple[float, ...]] = (62.99, 62.09, 66.70)
    shape: ClassVar[tuple[int, int, int]] = (3, 32, 32)
    train_images: ClassVar[int] = 50_000
    test_images: ClassVar[int] = 10_000
    validation_share: ClassVar[int] = 10

    def prepare(self, tell: Tell = silent) -> None:
        """Check that the files exist and are whole; unpack or download the archive if necessary.

        One process at a time does so, others wait. Raises ConnectionError without a network, BadFile with the
        ways out if files are missing or damaged and there is neither a whole archive nor leave to download.
        """
        from torchvision.datasets.utils import check_integrity

        if self._is_whole():
            return
        kind = self.torchvision_class()
        archive = Path(self.root) / kind.filename
        if not self.download and not check_integrity(archive, kind.tgz_md5):
            damaged = f"; {archive} is damaged or cut short" if archive.is_file() else ""
            raise BadFile(f"{self.missing()}{damaged}")
        with locked(Path(self.root)):
            if not self._is_whole():  # or another process has unpacked it
                with fetching(self.title, self.elsewhere()):
                    kind(self.root, download=True)  # takes an archive that is there and whole

    def load(self) -> Data:
        """See `Dataset.load`. Raises BadFile if files are missing or damaged."""
        try:
            train, test = self._read(train=True), self._read(train=False)
        except RuntimeError as error:
            raise BadFile(self.missing()) from error
        return self.in_splits(*train, *test)

    def _is_whole(self) -> bool:
        try:
            self._read(train=True)
        except RuntimeError:  # of a missing file, or another MD5
            return False
        return True

    def other_source(self) -> str:
        kind = self.torchvision_class()
        return f"put {kind.filename} (MD5 {kind.tgz_md5}) there"

    def _read(self, *, train: bool) -> tuple[Tensor, Tensor]:
        """Images uint8 [M, 3, 32, 32] and labels int64 [M]. Raises RuntimeError if a file is not whole."""
        with warnings.catch_warnings():
            # The files were pickled by a NumPy of 2009; newer ones warn about it.
            warnings.simplefilter("ignore", np.exceptions.VisibleDeprecationWarning)
            dataset = self.torchvision_class()(self.root, train=train)
        images = torch.from_numpy(dataset.data).permute(0, 3, 1, 2).contiguous()
        return images, torch.tensor(dataset.targets, dtype=torch.int64)


@dataclass(frozen=True, kw_only=True)
class CIFAR100(CIFAR10):
    """As `CIFAR10`, 100 classes."""

    name: ClassVar[str] = "cifar100"
    title: ClassVar[str] = "CIFAR-100"
    classes: ClassVar[int] = 100
    mean: ClassVar[tuple[float, ...]] = (129.30, 124.07, 112.43)
    std: ClassVar[tuple[float, ...]] = (68.17, 65.39, 70.42)
