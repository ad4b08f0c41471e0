"""70,000 grey images of handwritten digits, 28×28 pixels, 10 classes.

Source: Y. LeCun, L. Bottou, Y. Bengio, P. Haffner, Gradient-Based Learning Applied to Document Recognition,
Proceedings of the IEEE 86(11), 1998, DOI 10.1109/5.726791.
"""

from dataclasses import dataclass
from typing import ClassVar

from .idx_dataset import IdxDataset


@dataclass(frozen=True, kw_only=True)
class MNIST(IdxDataset):
    """Handwritten digits; the files to fetch are 12 MB. See `IdxDataset`."""

    name: ClassVar[str] = "mnist"
    title: ClassVar[str] = "MNIST"
    mean: ClassVar[float] = 33.32  # of all 60,000
    std: ClassVar[float] = 78.57
    md5s: ClassVar[dict[str, str]] = {
        "train-images-idx3-ubyte": "6bbc9ace898e44ae57da46a324031adb",
        "train-labels-idx1-ubyte": "a25bea736e30d166cdddb491f175f624",
        "t10k-images-idx3-ubyte": "2646ac647ad5339dbf082846283269ea",
        "t10k-labels-idx1-ubyte": "27ae3e4e09519cfbb04c329615203637",
    }
