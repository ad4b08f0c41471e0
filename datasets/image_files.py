"""Splits of image files that stay on disk, and splits with a label for each pixel (masks).

A batch of `ImageFiles` or `MaskedFiles` decodes its files when it is asked for.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from .pixels import BadImage, PixelRules, decode, decode_labels
from .transforms import Change, PairChange, own_draws


@dataclass(frozen=True, kw_only=True, eq=False)
class ImageFiles:
    """Like `data.Split`, but reads its files when a batch is asked for.

    root: folder that paths are relative to; shape: of an image in a batch, [C, h, w];
    paths, labels int64 [M]: the samples; rules: from file to pixels;
    transform: uint8 [C, H, W] of any size to uint8 of one size; normalise: uint8 [b, C, h, w] to float32;
    change: replaces transform in training, may draw from torch's generator (`own_draws`).
    All are picklable, and `pixels` uses nothing but the file: it may run in any process or thread.
    """

    root: str
    shape: tuple[int, int, int]
    paths: Sequence[str]
    labels: Tensor
    rules: PixelRules
    transform: Callable[[Tensor], Tensor]
    normalise: Callable[[Tensor], Tensor]
    change: Change | None = None

    @property
    def target_bytes(self) -> int:
        """See `data.Compact`."""
        return 0

    def __len__(self) -> int:
        return len(self.labels)

    def path(self, index: int) -> str:
        """The file of sample number `index`."""
        return f"{self.root}/{self.paths[index]}"

    def pixels(self, index: int) -> Tensor:
        """The decoded sample number `index`, uint8 [C, H, W]. Raises BadImage, which names the file."""
        return decode(self.path(index), self.rules)

    def batch(self, indices: Tensor) -> tuple[Tensor, Tensor]:
        """Images float32 [b, C, h, w], normalised, and labels int64 [b], for indices int64 [b].

        Raises IndexError, and pixels.BadImage, which names the file.
        """
        images = torch.empty(len(indices), *self.shape, dtype=torch.uint8)
        for index, image in zip(indices.tolist(), images, strict=True):
            image.copy_(self.transform(self.pixels(index)))
        return self.normalise(images), self.labels.index_select(0, indices)

    def augmented(self, indices: Tensor, key: int) -> tuple[Tensor, Tensor]:
        """As `batch`, each image changed by `change`, seeded by (key, its index)."""
        pixels, labels = self.changed(indices, key)
        return self.normalise(pixels), labels

    def changed(self, indices: Tensor, key: int) -> tuple[Tensor, Tensor]:
        """As `augmented`, not normalised: images uint8 [b, C, h, w]."""
        pixels = self.changed_pixels(map(self.pixels, indices.tolist()), indices, key)
        return pixels, self.labels.index_select(0, indices)

    def changed_pixels(self, pixels: Iterable[Tensor], indices: Tensor, key: int) -> Tensor:
        """`changed` images from decoded pixels of the samples `indices`: uint8 [b, C, h, w]."""
        images = torch.empty(len(indices), *self.shape, dtype=torch.uint8)
        change = self.change or self.transform
        with own_draws(key) as of_sample:
            # One by one: an image that was just decoded is still in the processor's cache.
            for image, into, index in zip(pixels, images, indices.tolist(), strict=True):
                of_sample(index)
                into.copy_(change(image))
        return images


# ------------------------------------------------------------------ a label for each pixel


_NAMED = 8  # unknown label ids in an error message


@dataclass(frozen=True, kw_only=True, eq=False)
class MaskedSplit:
    """Like `data.Split`, with a mask instead of a label.

    images: float32 [M, C, H, W], normalised; masks: uint8 [M, H, W], 255 for unlabelled; augment: random
    changes of both, for training.
    """

    images: Tensor
    masks: Tensor
    augment: PairChange | None = None

    def __len__(self) -> int:
        return len(self.masks)

    def batch(self, indices: Tensor) -> tuple[Tensor, Tensor]:
        """Images float32 [b, C, H, W] and masks int64 [b, H, W], for indices int64 [b]; copies."""
        return self.images.index_select(0, indices), self.masks.index_select(0, indices).to(torch.int64)

    def augmented(self, indices: Tensor, key: int) -> tuple[Tensor, Tensor]:
        """As `batch`, each image and its mask changed by `augment`, seeded by (key, its index)."""
        images, masks = self.images.index_select(0, indices), self.masks.index_select(0, indices)
        if self.augment is not None:
            with own_draws(key) as of_sample:
                for place, index in enumerate(indices.tolist()):
                    of_sample(index)
                    images[place], masks[place] = self.augment(images[place], masks[place])
        return images, masks.to(torch.int64)


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
        more = ", ..." if len(unknown) > _NAMED else ""
        ids = f"label ids {', '.join(map(str, unknown[:_NAMED]))}{more}"
        raise BadImage(path, f"{ids}: unknown; must be of {min(label_of)} to {max(label_of)}")
    return torch.from_numpy(labels.astype(np.uint8))


@dataclass(frozen=True, kw_only=True, eq=False)
class MaskedFiles:
    """Like `MaskedSplit`, but reads its files when a batch is asked for.

    root, shape, rules, normalise, change: as of `ImageFiles`; paths [M]: the images; mask_of: from the path
    of an image to that of its mask; label_of: as of `decode_mask`; transform: an image uint8 [C, H, W] of any
    size and its mask uint8 [H, W] to those of one size. All are picklable.
    """

    root: str
    shape: tuple[int, int, int]
    paths: Sequence[str]
    mask_of: Callable[[str], str]
    rules: PixelRules
    label_of: dict[int, int]
    transform: PairChange
    normalise: Callable[[Tensor], Tensor]
    change: PairChange | None = None

    @property
    def target_bytes(self) -> int:
        """See `data.Compact`."""
        return self.shape[1] * self.shape[2]

    def __len__(self) -> int:
        return len(self.paths)

    def pair(self, index: int) -> tuple[Tensor, Tensor]:
        """The decoded sample number `index`: uint8 [C, H, W] and its mask uint8 [H, W].

        Raises pixels.BadImage, which names the file, also if their sizes differ.
        """
        path = self.paths[index]
        mask_path = f"{self.root}/{self.mask_of(path)}"
        image, mask = decode(f"{self.root}/{path}", self.rules), decode_mask(mask_path, self.label_of)
        if image.shape[1:] != mask.shape:
            raise BadImage(mask_path, other_size(mask.shape[::-1], image.shape[:0:-1]))
        return image, mask

    def batch(self, indices: Tensor) -> tuple[Tensor, Tensor]:
        """Images float32 [b, C, h, w], normalised, and masks int64 [b, h, w], for indices int64 [b].

        Raises IndexError, and pixels.BadImage, which names the file.
        """
        images, masks = self._stacked([self.transform(*self.pair(index)) for index in indices.tolist()])
        return self.normalise(images), masks.to(torch.int64)

    def augmented(self, indices: Tensor, key: int) -> tuple[Tensor, Tensor]:
        """As `batch`, each image and its mask changed by `change`, seeded by (key, its index)."""
        images, masks = self.changed(indices, key)
        return self.normalise(images), masks.to(torch.int64)

    def changed(self, indices: Tensor, key: int) -> tuple[Tensor, Tensor]:
        """As `augmented`, not normalised, and as bytes: images uint8 [b, C, h, w], masks uint8 [b, h, w]."""
        change, pairs = self.change or self.transform, []
        with own_draws(key) as of_sample:
            for index in indices.tolist():
                pair = self.pair(index)
                of_sample(index)
                pairs.append(change(*pair))
        return self._stacked(pairs)

    def _stacked(self, pairs: list[tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
        # A rank may have no sample of a short batch.
        images, masks = (torch.zeros(0, *shape, dtype=torch.uint8) for shape in (self.shape, self.shape[1:]))
        if pairs:
            images, masks = (torch.stack(column) for column in zip(*pairs, strict=True))
        return images, masks


def other_size(mask: Sequence[int], image: Sequence[int]) -> str:
    """The error message for a mask whose (width, height) is not that of its image."""
    return f"is {mask[0]} x {mask[1]}, its image {image[0]} x {image[1]}"
