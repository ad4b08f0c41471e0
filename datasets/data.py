"""The splits of a data set, and the batches cut from them."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
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


@runtime_checkable
class Movable(Protocol):
    """Samples in memory that may lie on a GPU; indices may be on another device, batches are on theirs."""

    @property
    def device(self) -> torch.device: ...

    @property
    def nbytes(self) -> int: ...

    def on(self, device: torch.device) -> Samples:
        """The same samples on `device`."""
        ...


def on_device(data: "Data", device: torch.device, most_mib: float) -> "Data":
    """The data with those splits on `device` that can be there and together fit into `most_mib`.

    The training split comes first. Samples that are changed one by one stay where they are.
    """
    room, moved = most_mib * 2**20, dict[str, Any]()
    for name in SPLITS if device.type != "cpu" else ():
        split = data.split(name)
        if isinstance(split, Movable) and getattr(split, "augment", None) is None and split.nbytes <= room:
            room -= split.nbytes
            moved[name] = split.on(device)
    return replace(data, **moved)


def indices_on(device: torch.device, indices: Tensor) -> Tensor:
    """The indices on `device`; the host does not wait for a GPU."""
    if device.type == "cuda" and indices.device.type == "cpu":
        indices = indices.pin_memory()
    return indices.to(device, non_blocking=True)


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
        for name, numbers in (("_mean", self.mean), ("_std", self.std)):
            tensor = torch.tensor(numbers, dtype=torch.float32, device=self.images.device)
            object.__setattr__(self, name, tensor.view(1, -1, 1, 1))

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def device(self) -> torch.device:
        return self.images.device

    @property
    def nbytes(self) -> int:
        return self.images.nbytes + self.labels.nbytes

    def on(self, device: torch.device) -> "Split":
        return replace(self, images=self.images.to(device), labels=self.labels.to(device))

    def batch(self, indices: Tensor) -> tuple[Tensor, Tensor]:
        """Images float32 [b, C, H, W], normalised, and labels int64 [b] or [b, H, W], for indices int64 [b].

        The result is a copy; an index out of range raises IndexError.
        """
        images, labels = self._chosen(indices)
        return self._normalised(images), labels.to(torch.int64)

    def augmented(self, indices: Tensor, key: int) -> tuple[Tensor, Tensor]:
        """As `batch`, each sample changed by `augment`, seeded by (key, its index)."""
        images, labels = self._chosen(indices)
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

    def _chosen(self, indices: Tensor) -> tuple[Tensor, Tensor]:
        """Copies of images and labels as stored."""
        indices = indices_on(self.device, indices)
        return self.images.index_select(0, indices), self.labels.index_select(0, indices)

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
