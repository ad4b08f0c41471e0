"""70,000 grey images of clothes, 28×28 pixels, 10 classes: the study set of this project.

Source: H. Xiao, K. Rasul, R. Vollgraf, Fashion-MNIST: a Novel Image Dataset for Benchmarking Machine Learning
Algorithms, 2017, arXiv:1708.07747.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from .mnist import MNIST

DEBIAN_FOLDER = Path("/usr/share/datasets/fashion-mnist")  # package dataset-fashion-mnist


@dataclass(frozen=True, kw_only=True)
class FashionMNIST(MNIST):
    """Clothes; the files to fetch are 30 MB, or Debian's package has them. See `MNIST`."""

    name: ClassVar[str] = "fashion_mnist"
    title: ClassVar[str] = "Fashion-MNIST"
    mean: ClassVar[tuple[float, ...]] = (72.93,)  # of the 55,000
    std: ClassVar[tuple[float, ...]] = (90.03,)
    md5s: ClassVar[dict[str, str]] = {
        "train-images-idx3-ubyte": "f4a8712d7a061bf5bd6d2ca38dc4d50a",
        "train-labels-idx1-ubyte": "9018921c3c673c538a1fc5bad174d6f9",
        "t10k-images-idx3-ubyte": "8181f5470baa50b63fa0f6fddb340f0a",
        "t10k-labels-idx1-ubyte": "15d484375f8d13e6eb1aabb0c3f46965",
    }

    def installed(self) -> tuple[Path, str]:
        return DEBIAN_FOLDER, "dataset-fashion-mnist (Debian)"
