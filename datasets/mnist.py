"""MNIST and data sets in its files: 70,000 grey images, 28×28 pixels, 10 classes.

Source of MNIST: Y. LeCun, L. Bottou, Y. Bengio, P. Haffner, Gradient-Based Learning Applied to Document
Recognition, Proceedings of the IEEE 86(11), 1998, DOI 10.1109/5.726791.

torchvision downloads the files, and this module reads them: torchvision's reader accepts no compressed files,
as Debian has them, checks no MD5, and confuses MNIST's files with Fashion-MNIST's of the same names.
"""

import gzip
import hashlib
import os
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import torch
from torch import Tensor

from .atomic_files import BadFile, locked, scratch
from .data import Data
from .dataset import Tell, silent
from .downloads import DownloadedDataset, fetching

PARTS = ("train", "t10k")
NAMES = [f"{part}-{kind}-ubyte" for part in PARTS for kind in ("images-idx3", "labels-idx1")]
IMAGES_HEADER, LABELS_HEADER = 16, 8  # bytes of the IDX format before the first number


@dataclass(frozen=True, kw_only=True)
class MNIST(DownloadedDataset):
    """55,000 training, 5,000 validation and 10,000 test images [1, 28, 28], 10 classes, in four IDX files.

    The files are in TITLE/raw below `root`, plain or compressed (.gz); to download they are 12 MB.
    """

    name: ClassVar[str] = "mnist"
    title: ClassVar[str] = "MNIST"
    mean: ClassVar[tuple[float, ...]] = (33.32,)  # of all 60,000
    std: ClassVar[tuple[float, ...]] = (78.57,)
    classes: ClassVar[int] = 10
    shape: ClassVar[tuple[int, int, int]] = (1, 28, 28)
    train_images: ClassVar[int] = 60_000
    test_images: ClassVar[int] = 10_000
    validation_share: ClassVar[int] = 12
    md5s: ClassVar[dict[str, str]] = {  # of the decompressed content
        "train-images-idx3-ubyte": "6bbc9ace898e44ae57da46a324031adb",
        "train-labels-idx1-ubyte": "a25bea736e30d166cdddb491f175f624",
        "t10k-images-idx3-ubyte": "2646ac647ad5339dbf082846283269ea",
        "t10k-labels-idx1-ubyte": "27ae3e4e09519cfbb04c329615203637",
    }

    def prepare(self, tell: Tell = silent) -> None:
        """Check that the files exist and are whole; download them if `download` is set.

        Raises FileNotFoundError with the ways out, ConnectionError without a network, BadFile naming a file
        that is damaged or of another data set.
        """
        if self.download and self._found() is None:
            self._fetch()
        for part in PARTS:
            self._read(part)

    def load(self) -> Data:
        """See `Dataset.load`; raises BadFile as `prepare`."""
        return self.in_splits(*self._read("train"), *self._read("t10k"))

    def installed(self) -> tuple[Path, str] | None:
        """The folder of a system package with the files, and the name of the package; None: no package."""
        return None

    def other_source(self) -> str:
        installed = self.installed()
        package = f", or install the package {installed[1]}" if installed else ""
        return f"put torchvision's folder {self._folder().relative_to(self.root)} there{package}"

    def _folder(self) -> Path:
        return Path(self.root) / self.title.replace("-", "") / "raw"

    def _found(self) -> dict[str, Path] | None:
        installed = self.installed()
        return find_files(self._folder()) or (find_files(installed[0]) if installed else None)

    def _fetch(self) -> None:
        """Have torchvision download the files; they are renamed when all are complete."""
        root = Path(self.root)
        with locked(root):
            if find_files(self._folder()) is not None:  # another process fetched them
                return
            with scratch(root) as temporary:
                with fetching(self.title, self.elsewhere()):
                    self.torchvision_class()(str(temporary), download=True)
                self._folder().mkdir(parents=True, exist_ok=True)
                for name in NAMES:
                    os.replace(temporary / self._folder().relative_to(root) / name, self._folder() / name)

    def _read(self, part: str) -> tuple[Tensor, Tensor]:
        """Images uint8 [M, 1, 28, 28] and labels int64 [M]; the MD5 guarantees their format."""
        files = self._found()
        if files is None:
            raise FileNotFoundError(self.missing())
        images, labels = (self._content(files[name], name) for name in NAMES if name.startswith(part))
        pixels = torch.frombuffer(images, dtype=torch.uint8, offset=IMAGES_HEADER)
        numbers = torch.frombuffer(labels, dtype=torch.uint8, offset=LABELS_HEADER)
        return pixels.view(-1, *self.shape), numbers.to(torch.int64)

    def _content(self, path: Path, name: str) -> bytearray:
        """The decompressed content of the file called `name`. Raises BadFile, OSError."""
        try:
            content = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
        except (EOFError, gzip.BadGzipFile, zlib.error) as error:
            raise BadFile(f"{path}: damaged or cut short ({error}); delete it and get it again") from error
        md5 = hashlib.md5(content, usedforsecurity=False).hexdigest()
        if md5 != self.md5s[name]:
            raise BadFile(
                f"{path}: holds {len(content)} bytes with the MD5 {md5}, not {self.md5s[name]}: damaged, "
                "cut short, or another data set's file of that name; delete it and get it again"
            )
        return bytearray(content)


def find_files(folder: Path) -> dict[str, Path] | None:
    """The four files of `folder`, plain or .gz, by their plain name; None if one is missing."""
    files = {
        name: path
        for name in NAMES
        for path in (folder / f"{name}.gz", folder / name)  # the plain file is preferred
        if path.is_file()
    }
    return files if len(files) == len(NAMES) else None
