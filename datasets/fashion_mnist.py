"""70,000 grey images of clothes, 28×28 pixels, 10 classes: the study set of this project.

Source: H. Xiao, K. Rasul, R. Vollgraf, Fashion-MNIST: a Novel Image Dataset for Benchmarking Machine Learning
Algorithms, 2017, arXiv:1708.07747.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from .augmentation import recipe
from .data import Data
from .idx_folder import check_files, fetch_files, find_files, load_files, not_there

DEBIAN_FOLDER = Path("/usr/share/datasets/fashion-mnist")  # package dataset-fashion-mnist
# Mean and standard deviation of the training split; pixels are 0 to 255.
MEAN, STD = 72.93, 90.03


@dataclass(frozen=True, kw_only=True)
class FashionMNIST:
    """55,000 training, 5,000 validation and 10,000 test images [1, 28, 28], 10 classes.

    root: folder that has, or gets, torchvision's layout FashionMNIST/raw; relative to the working folder;
    download: whether a run may fetch the files (30 MB) when neither root nor Debian's package has them;
    `daso-bench prepare` always may; augment: random changes of training images, as `augmentation.recipe` has
    them. Raises ValueError for an unknown one.
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
            fetch_files(Path(self.root), "FashionMNIST", "fashion_mnist")
        check_files(self._files())

    def load(self) -> Data:
        """Reads the files; raises FileNotFoundError when there are none, OSError when one is damaged."""
        return load_files(self._files(), "fashion_mnist", MEAN, STD, recipe(self.augment, (28, 28)))

    def _found(self) -> dict[str, Path] | None:
        return find_files(Path(self.root) / "FashionMNIST" / "raw") or find_files(DEBIAN_FOLDER)

    def _files(self) -> dict[str, Path]:
        found = self._found()
        if found is None:
            own = Path(self.root) / "FashionMNIST" / "raw"
            raise FileNotFoundError(
                f"{not_there('Fashion-MNIST', own)}, and not in {DEBIAN_FOLDER}: "
                f"put torchvision's copy below dataset.root={self.root}, or install Debian's package "
                "dataset-fashion-mnist, or run daso-bench prepare dataset=fashion_mnist, or set "
                "dataset.download=true"
            )
        return found
