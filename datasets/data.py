"""The splits of a data set, and the batches cut from them."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor

from .transforms import Change, seeded

SPLITS = ("train", "validation", "test")


class Samples(Protocol):
    """Labelled images that are gathered by index: `Split`, `ImageFiles`, `NoisyPatterns`."""

    def __len__(self) -> int: ...

    def batch(self, indices: Tensor) -> tuple[Tensor, Tensor]:
        """Images float32 [b, C, H, W], normalised, and labels int64 [b], for indices int64 [b]."""
        ...


@runtime_checkable
class Augmentable(Protocol):
    """Samples whose training images are changed at random; `batch` does not change them."""

    def augmented(self, indices: Tensor, key: int) -> tuple[Tensor, Tensor]:
        """As `Samples.batch`, each image changed at random, seeded by (key, its index)."""
        ...


@runtime_checkable
class Compact(Protocol):
    """Augmentable samples whose images are smaller before normalisation than after it.

    A loader worker leaves normalisation to the process that trains, so that less memory is passed on.
    """

    @property
    def shape(self) -> tuple[int, int, int]:
        """Of an image, [C, H, W]."""
        ...

    @property
    def target_bytes(self) -> int:
        """Bytes of a sample's mask, which `changed` gives as uint8; 0 if targets are labels int64 [b]."""
        ...

    def changed(self, indices: Tensor, key: int) -> tuple[Tensor, Tensor]:
        """As `Augmentable.augmented`, not normalised: images uint8 [b, C, H, W], masks uint8 [b, H, W]."""
        ...

    @property
    def normalise(self) -> Callable[[Tensor], Tensor]:
        """Normalises images uint8 [b, C, H, W]; picklable."""
        ...


def training_batch(samples: Samples, indices: Tensor, key: int) -> tuple[Tensor, Tensor]:
    """A training batch: images float32 [b, C, H, W] and labels, changed at random if they are Augmentable."""
    if isinstance(samples, Augmentable):
        return samples.augmented(indices, key)
    return samples.batch(indices)


@dataclass(frozen=True, kw_only=True, eq=False)
class Split:
    """Labelled images in memory.

    images: uint8 or float32 [M, C, H, W], as stored; labels: int64 [M];
    mean, std: one number per channel, in the units of `images`; a batch is (images - mean) / std;
    augment: random changes of images as they are stored, for training.
    Raises ValueError if shapes or types do not fit together.
    """

    images: Tensor
    labels: Tensor
    mean: Sequence[float]
    std: Sequence[float]
    augment: Change | None = None
    _mean: Tensor = field(init=False, repr=False)
    _std: Tensor = field(init=False, repr=False)

    def __post_init__(self) -> None:
        if self.images.dim() != 4 or self.images.dtype not in (torch.uint8, torch.float32):
            raise ValueError(
                f"images {self.images.dtype} {list(self.images.shape)}: must be uint8 or float32 [M, C, H, W]"
            )
        if self.labels.dtype != torch.int64 or self.labels.shape != self.images.shape[:1]:
            raise ValueError(
                f"labels {self.labels.dtype} {list(self.labels.shape)}: must be int64 [{len(self.images)}]"
            )
        channels = self.images.shape[1]
        if len(self.mean) != channels or len(self.std) != channels or min(self.std) <= 0:
            raise ValueError(f"mean and std: must be {channels} numbers each, std > 0")
        object.__setattr__(self, "_mean", torch.tensor(self.mean, dtype=torch.float32).view(1, -1, 1, 1))
        object.__setattr__(self, "_std", torch.tensor(self.std, dtype=torch.float32).view(1, -1, 1, 1))

    def __len__(self) -> int:
        return len(self.labels)

    def batch(self, indices: Tensor) -> tuple[Tensor, Tensor]:
        """Images float32 [b, C, H, W], normalised, and labels int64 [b], for indices int64 [b].

        The result is a copy; an index out of range raises IndexError.
        """
        # index_select makes the copy, so the arithmetic may work in place.
        return self._normalised(self.images.index_select(0, indices)), self.labels.index_select(0, indices)

    def augmented(self, indices: Tensor, key: int) -> tuple[Tensor, Tensor]:
        """As `batch`, each image changed by `augment`, seeded by (key, its index)."""
        images = self.images.index_select(0, indices)
        return self.trained_on(images, indices, key), self.labels.index_select(0, indices)

    def trained_on(self, images: Tensor, indices: Tensor, key: int) -> Tensor:
        """`augmented` images from stored ones [b, C, H, W] of the samples `indices`; overwrites them."""
        if self.augment is not None:
            for image, _ in zip(images, seeded(indices, key), strict=True):
                image.copy_(self.augment(image))
        return self._normalised(images)

    def _normalised(self, images: Tensor) -> Tensor:
        """(images - mean) / std; in place if they are float32 already."""
        return images.to(torch.float32).sub_(self._mean).div_(self._std)


@dataclass(frozen=True, kw_only=True)
class Data:
    """A data set: its splits, its name, the number of classes and the shape (C, H, W) of one image.

    files: digest of names, labels, sizes and content of its files; "" if the configuration alone determines
    the samples.
    """

    name: str
    classes: int
    shape: tuple[int, int, int]
    train: Samples
    validation: Samples
    test: Samples
    files: str = ""

    def split(self, name: str) -> Samples:
        if name not in SPLITS:
            raise ValueError(f"split {name}: must be one of {', '.join(SPLITS)}")
        return getattr(self, name)
