"""What MNIST and Fashion-MNIST have in common: where their files lie, how a run comes by them."""

from abc import ABC
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from .augmentation import recipe
from .data import Data
from .idx_folder import check_files, fetch_files, find_files, load_files, not_there


@dataclass(frozen=True, kw_only=True)
class IdxDataset(ABC):
    """55,000 training, 5,000 validation and 10,000 test images [1, 28, 28], 10 classes.

    root: folder that has, or gets, torchvision's layout TITLE/raw; relative to the working folder; download:
    whether a run may fetch the files; `daso-bench prepare` always may; augment: random changes of training
    images, as `augmentation.recipe` has them. Raises ValueError for an unknown one.
    """

    root: str = "data"
    download: bool = False
    augment: str = "none"

    name: ClassVar[str]
    title: ClassVar[str]
    mean: ClassVar[float]  # of the training images; pixels are 0 to 255
    std: ClassVar[float]
    md5s: ClassVar[dict[str, str]]  # of the files' content, decompressed
    shape: ClassVar[tuple[int, int, int]] = (1, 28, 28)
    train_samples: ClassVar[int] = 55_000

    def __post_init__(self) -> None:
        recipe(self.augment, self.shape[1:])

    def prepare(self) -> None:
        """Makes sure that the files are on this machine, by downloading if asked to.

        Raises FileNotFoundError, with the ways out, when they are not; ConnectionError without a network;
        BadFile naming one that is damaged or another's.
        """
        if self._found() is None and self.download:
            fetch_files(Path(self.root), self._torchvision(), self.name)
        check_files(self._files(), self.md5s)

    def load(self) -> Data:
        """Reads the files; raises FileNotFoundError when there are none, BadFile as `prepare`."""
        augment = recipe(self.augment, self.shape[1:])
        return load_files(self._files(), self.name, self.mean, self.std, md5s=self.md5s, augment=augment)

    def _torchvision(self) -> str:
        return self.title.replace("-", "")

    def _folder(self) -> Path:
        return Path(self.root) / self._torchvision() / "raw"

    def _installed(self) -> tuple[Path, str] | None:
        """A folder in which a package of the system has the files, and the package's name; None: no such."""
        return None

    def _found(self) -> dict[str, Path] | None:
        found = find_files(self._folder())
        installed = self._installed()
        return find_files(installed[0]) if found is None and installed is not None else found

    def _files(self) -> dict[str, Path]:
        found = self._found()
        if found is not None:
            return found
        folder, package = self._installed() or (None, None)
        raise FileNotFoundError(
            f"{not_there(self.title, self._folder())}{f', and not in {folder}' if folder else ''}: "
            f"put torchvision's copy below dataset.root={self.root}, "
            f"{f'or install the package {package}, ' if package else ''}"
            f"or run daso-bench prepare dataset={self.name}, or set dataset.download=true"
        )
