"""Splits of image files that stay on disk, with a label each, or a mask with a label for each pixel."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from .pixels import BadImage, PixelRules, decode, decode_labels
from .transforms import seeded

_NAMED = 8  # unknown label ids, the first ones, in an error message


@dataclass(frozen=True, kw_only=True, eq=False)
class FilesOnDisk(ABC):
    """Like `data.Split`, but reads its files when a batch is asked for.

    root: folder that paths are relative to; shape: of an image in a batch, [C, h, w]; paths [M]: the images;
    rules: from file to pixels; transform: a decoded sample of any size to one of that shape, uint8;
    normalise: uint8 [b, C, h, w] to float32; change: replaces transform in training, may draw from torch's
    generator (`seeded`). All are picklable, and decoding uses nothing but the file: any process may do it.
    """

    root: str
    shape: tuple[int, int, int]
    paths: Sequence[str]
    rules: PixelRules
    transform: Callable[..., Any]
    normalise: Callable[[Tensor], Tensor]
    change: Callable[..., Any] | None = None

    @property
    @abstractmethod
    def target_bytes(self) -> int:
        """Bytes of a sample's mask, which `changed` gives as uint8; 0 if targets are labels int64 [b]."""

    def __len__(self) -> int:
        return len(self.paths)

    def path(self, index: int) -> str:
        """The image file of sample number `index`."""
        return f"{self.root}/{self.paths[index]}"

    def batch(self, indices: Tensor) -> tuple[Tensor, Tensor]:
        """Images float32 [b, C, h, w], normalised, and labels int64 [b] or masks int64 [b, h, w].

        indices: int64 [b]. Raises IndexError, and pixels.BadImage, which names the file.
        """
        return self._normalised(*self._stored(indices, 0, self.transform))  # which draws nothing

    def augmented(self, indices: Tensor, key: int) -> tuple[Tensor, Tensor]:
        """As `batch`, each sample changed by `change`, seeded by (key, its index)."""
        return self._normalised(*self.changed(indices, key))

    def changed(self, indices: Tensor, key: int) -> tuple[Tensor, Tensor]:
        """As `augmented`, not normalised, and as bytes: images uint8 [b, C, h, w], masks uint8 [b, h, w].

        A loader worker leaves normalisation to the process that trains, so that less memory is passed on.
        """
        return self._stored(indices, key, self.change or self.transform)

    @abstractmethod
    def _stored(self, indices: Tensor, key: int, change: Callable[..., Any]) -> tuple[Tensor, Tensor]:
        """See `changed`; decoded samples by `change`."""

    def _normalised(self, images: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        return self.normalise(images), targets.to(torch.int64)


@dataclass(frozen=True, kw_only=True, eq=False)
class ImageFiles(FilesOnDisk):
    """See `FilesOnDisk`; a sample is an image uint8 [C, H, W]. labels: int64 [M]."""

    labels: Tensor

    @property
    def target_bytes(self) -> int:
        return 0

    def pixels(self, index: int) -> Tensor:
        """The decoded sample number `index`, uint8 [C, H, W]. Raises BadImage, which names the file."""
        return decode(self.path(index), self.rules)

    def changed_pixels(
        self, pixels: Iterable[Tensor], indices: Tensor, key: int, change: Callable[..., Any] | None = None
    ) -> Tensor:
        """Images uint8 [b, C, h, w] from decoded pixels of the samples `indices`, by `change`."""
        change = change or self.change or self.transform
        images = torch.empty(len(indices), *self.shape, dtype=torch.uint8)
        # One by one: an image that was just decoded is still in the processor's cache.
        for image, into, _ in zip(pixels, images, seeded(indices, key), strict=True):
            into.copy_(change(image))
        return images

    def _stored(self, indices: Tensor, key: int, change: Callable[..., Any]) -> tuple[Tensor, Tensor]:
        pixels = self.changed_pixels(map(self.pixels, indices.tolist()), indices, key, change)
        return pixels, self.labels.index_select(0, indices)


@dataclass(frozen=True, kw_only=True, eq=False)
class MaskedFiles(FilesOnDisk):
    """See `FilesOnDisk`; a sample is an image uint8 [C, H, W] and its mask uint8 [H, W].

    mask_of: from the path of an image to that of its mask; label_of: as of `decode_mask`.
    """

    mask_of: Callable[[str], str]
    label_of: dict[int, int]

    @property
    def target_bytes(self) -> int:
        return self.shape[1] * self.shape[2]

    def pair(self, index: int) -> tuple[Tensor, Tensor]:
        """The decoded sample number `index`: uint8 [C, H, W] and its mask uint8 [H, W].

        Raises pixels.BadImage, which names the file, also if their sizes differ.
        """
        mask_path = f"{self.root}/{self.mask_of(self.paths[index])}"
        image, mask = decode(self.path(index), self.rules), decode_mask(mask_path, self.label_of)
        if image.shape[1:] != mask.shape:
            raise BadImage(mask_path, other_size(mask.shape[::-1], image.shape[:0:-1]))
        return image, mask

    def _stored(self, indices: Tensor, key: int, change: Callable[..., Any]) -> tuple[Tensor, Tensor]:
        images = torch.empty(len(indices), *self.shape, dtype=torch.uint8)
        masks = torch.empty(len(indices), *self.shape[1:], dtype=torch.uint8)
        for place, index in enumerate(seeded(indices, key)):
            images[place], masks[place] = change(*self.pair(index))
        return images, masks


def decode_mask(path: str, label_of: dict[int, int]) -> Tensor:
    """The labels uint8 [height, width] of the mask file at `path`.

    label_of: the label of each number in the file. Raises BadImage, which names other numbers.
    """
    numbers = decode_labels(path).numpy()
    table = np.full(256, -1, dtype=np.int16)
    table[list(label_of)] = list(label_of.values())
    labels = table[numbers]
    if labels.min() < 0:
        unknown = np.unique(numbers[labels < 0]).tolist()
        allowed = f"{min(label_of)} to {max(label_of)}"
        raise BadImage(
            path, f"label ids {', '.join(map(str, unknown[:_NAMED]))}: unknown; must be of {allowed}"
        )
    return torch.from_numpy(labels.astype(np.uint8))


def other_size(mask: Sequence[int], image: Sequence[int]) -> str:
    """The error message for a mask whose (width, height) is not that of its image."""
    return f"is {mask[0]} x {mask[1]}, its image {image[0]} x {image[1]}"
