"""Data sets that are fetched from the network by torchvision, checked by MD5 and held in memory."""

from abc import ABC
from dataclasses import dataclass, replace
from typing import ClassVar, Self

from torch import Tensor

from .augmentation import Change, recipe
from .data import Data, Split
from .dataset import Dataset, DatasetInfo
from .holdout import split_by_class


@dataclass(frozen=True, kw_only=True)
class DownloadedDataset(Dataset, ABC):
    """A data set whose validation split is held out of its training images.

    root: folder that has, or gets, torchvision's layout; relative to the working folder; download: whether a
    run may fetch the files; `daso-bench prepare` always may; augment: random changes of training images, as
    `augmentation.recipe` has them. Raises ValueError for an unknown one.
    """

    root: str = "data"
    download: bool = False
    augment: str = "none"

    title: ClassVar[str]
    classes: ClassVar[int]
    shape: ClassVar[tuple[int, int, int]]
    mean: ClassVar[tuple[float, ...]]  # per channel, of the training images; pixels are 0 to 255
    std: ClassVar[tuple[float, ...]]
    train_images: ClassVar[int]
    test_images: ClassVar[int]
    validation_share: ClassVar[int]  # one in so many training images of each class

    def __post_init__(self) -> None:
        recipe(self.augment, self.shape[1:])

    def info(self) -> DatasetInfo:
        """See `Dataset.info`."""
        held_out = self.train_images // self.classes // self.validation_share * self.classes
        samples = {
            "train": self.train_images - held_out,
            "validation": held_out,
            "test": self.test_images,
        }
        return DatasetInfo(shape=self.shape, classes=self.classes, samples=samples)

    def downloading(self) -> Self:
        """See `Dataset.downloading`."""
        return replace(self, download=True)

    def folder(self) -> str:
        """See `Dataset.folder`."""
        return self.root

    def torchvision_name(self) -> str:
        """Of torchvision's class."""
        return self.title.replace("-", "")

    def in_splits(self, images: Tensor, labels: Tensor, test_images: Tensor, test_labels: Tensor) -> Data:
        """The data set of images uint8 [M, C, H, W] and labels int64 [M]."""
        per_class = len(labels) // self.classes // self.validation_share
        train, validation = split_by_class(labels, per_class, self.name)

        def split(images: Tensor, labels: Tensor, augment: Change | None = None) -> Split:
            return Split(images=images, labels=labels, mean=self.mean, std=self.std, augment=augment)

        return Data(
            name=self.name,
            classes=self.classes,
            shape=self.shape,
            train=split(images[train], labels[train], recipe(self.augment, self.shape[1:])),
            validation=split(images[validation], labels[validation]),
            test=split(test_images, test_labels),
        )
