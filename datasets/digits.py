"""1,797 handwritten digits of 8×8 pixels, a file of this project: works offline, trains in seconds.

Source: E. Alpaydin and C. Kaynak, Optical Recognition of Handwritten Digits, UCI Machine Learning Repository,
1998, DOI 10.24432/C50P49; see digits.txt.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch

from .data import SPLITS, Data, Split
from .dataset import Dataset, DatasetInfo

FILE = Path(__file__).with_name("digits.npz")
# Mean and standard deviation of the training split; pixels are 0 to 16.
MEAN, STD = 4.887, 6.020


@dataclass(frozen=True, kw_only=True)
class Digits(Dataset):
    """1,149 training, 288 validation and 360 test images [1, 8, 8], 10 classes; the split is fixed."""

    name: ClassVar[str] = "digits"

    def info(self) -> DatasetInfo:
        samples = {"train": 1149, "validation": 288, "test": 360}
        return DatasetInfo(shape=(1, 8, 8), classes=10, samples=samples)

    def load(self) -> Data:
        with np.load(FILE, allow_pickle=False) as file:
            images = torch.from_numpy(file["images"]).unsqueeze(1)
            labels = torch.from_numpy(file["labels"]).to(torch.int64)
            index = {name: torch.from_numpy(file[name].astype(np.int64)) for name in SPLITS}
        splits: dict[str, Any] = {
            name: Split(images=images[chosen], labels=labels[chosen], mean=(MEAN,), std=(STD,))
            for name, chosen in index.items()
        }
        return Data(name=self.name, classes=10, shape=(1, 8, 8), **splits)
