"""70,000 grey images of handwritten digits, 28×28 pixels, 10 classes.

Source: Y. LeCun, L. Bottou, Y. Bengio, P. Haffner, Gradient-Based Learning Applied to Document Recognition,
Proceedings of the IEEE 86(11), 1998, DOI 10.1109/5.726791.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from .augmentation import recipe
from .data import Data
from .idx_folder import check_files, fetch_files, find_files, load_files, not_there

# Mean and standard deviation of the 60,000 training images; pixels are 0 to 255.
MEAN, STD = 33.32, 78.57


@dataclass(frozen=True, kw_only=True)
class MNIST:
    """55,000 training, 5,000 validation and 10,000 test images [1, 28, 28], 10 classes.

    root: folder that has, or gets, torchvision's layout MNIST/raw; relative to the working folder;
    download: whether a run may fetch the files (12 MB); `daso-bench prepare` always may; augment: random
    changes of training images, as `augmentation.recipe` has them. Raises ValueError for an unknown one.
    """

    root: str = "data"
    download: bool = False
    augment: str = "none"

    train_samples: ClassVar[int] = 55_000

    def __post_init__(self) -> None:
        recipe(self.augment, (28, 28))

    def prepare(self) -> None:
        """Makes sure that the files are on this machine, by downloading if asked to.

        Raises FileNotFoundError, with the ways out, when they are not; ConnectionError without a network;
        OSError naming a damaged file.
        """
        if self._found() is None and self.download:
            fetch_files(Path(self.root), "MNIST", "mnist")
        check_files(self._files())

    def load(self) -> Data:
        """Reads the files; raises FileNotFoundError when there are none, OSError when one is damaged."""
        return load_files(self._files(), "mnist", MEAN, STD, recipe(self.augment, (28, 28)))

    def _found(self) -> dict[str, Path] | None:
        return find_files(Path(self.root) / "MNIST" / "raw")

    def _files(self) -> dict[str, Path]:
        found = self._found()
        if found is None:
            raise FileNotFoundError(
                f"{not_there('MNIST', Path(self.root) / 'MNIST' / 'raw')}: put torchvision's copy below "
                f" dataset.root={self.root}, or run daso-bench prepare dataset=mnist, or set "
                "dataset.download=true"
            )
        return found
