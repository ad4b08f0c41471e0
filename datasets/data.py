"""The splits of a data set, and the batches cut from them."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor

from .transforms import seeded

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


def training_batch(samples: Samples, indices: Tensor, key: int) -> tuple[Tensor, Tensor]:
    """A training batch: images float32 [b, C, H, W] and labels, changed at random if they are Augmentable."""
    if isinstance(samples, Augmentable):
        return samples.augmented(indices, key)
    return samples.batch(indices)


@dataclass(frozen=True, kw_only=True, eq=False)
class Split:
    """Labelled images in memory.

    images: uint8 or float32 [M, C, H, W], as stored; labels: int64 [M], or masks with a label for each pixel,
    uint8 [M, H, W]; mean, std: one number per channel, in the units of `images`; a batch is
    (images - mean) / std; augment: random changes, for training, of an image as it is stored (`Change`), or
    of it and its mask (`PairChange`).
    Raises ValueError if shapes or types do not fit together.
    """

    images: Tensor
    labels: Tensor
    mean: Sequence[float]
    std: Sequence[float]
    augment: Callable[..., Any] | None = None
    _mean: Tensor = field(init=False, repr=False)
    _std: Tensor = field(init=False, repr=False)

    def __post_init__(self) -> None:
        if self.images.dim() != 4 or self.images.dtype not in (torch.uint8, torch.float32):
            raise ValueError(
                f"images {self.images.dtype} {list(self.images.shape)}: must be uint8 or float32 [M, C, H, W]"
            )
        count, channels, *side = self.images.shape
        if (self.labels.dtype, list(self.labels.shape)) not in (
            (torch.int64, [count]),
            (torch.uint8, [count, *side]),
        ):
            raise ValueError(
                f"labels {self.labels.dtype} {list(self.labels.shape)}: must be int64 [{count}], or uint8 "
                f"{[count, *side]} for masks"
            )
        if len(self.mean) != channels or len(self.std) != channels or min(self.std) <= 0:
            raise ValueError(f"mean and std: must be {channels} numbers each, std > 0")
        object.__setattr__(self, "_mean", torch.tensor(self.mean, dtype=torch.float32).view(1, -1, 1, 1))
        object.__setattr__(self, "_std", torch.tensor(self.std, dtype=torch.float32).view(1, -1, 1, 1))

    def __len__(self) -> int:
        return len(self.labels)

    def batch(self, indices: Tensor) -> tuple[Tensor, Tensor]:
        """Images float32 [b, C, H, W], normalised, and labels int64 [b] or [b, H, W], for indices int64 [b].

        The result is a copy; an index out of range raises IndexError.
        """
        # index_select makes the copies, so what follows may work in place.
        images, labels = self.images.index_select(0, indices), self.labels.index_select(0, indices)
        return self._normalised(images), labels.to(torch.int64)

    def augmented(self, indices: Tensor, key: int) -> tuple[Tensor, Tensor]:
        """As `batch`, each sample changed by `augment`, seeded by (key, its index)."""
        images, labels = self.images.index_select(0, indices), self.labels.index_select(0, indices)
        if labels.dim() == 1 or self.augment is None:
            return self.trained_on(images, indices, key), labels.to(torch.int64)
        for place, _ in enumerate(seeded(indices, key)):
            images[place], labels[place] = self.augment(images[place], labels[place])
        return self._normalised(images), labels.to(torch.int64)

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
