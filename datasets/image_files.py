"""A split whose images stay on disk: a batch decodes its files when it is asked for."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from .augmentation import Change, own_draws
from .pixels import PixelRules, decode


@dataclass(frozen=True, kw_only=True, eq=False)
class ImageFiles:
    """The lazy sibling of `data.Split`.

    root: folder that paths count from; shape: of an image as it is given out, [C, h, w];
    paths, labels int64 [M]: the samples; rules: from file to pixels;
    transform: uint8 [C, H, W] of any size to uint8 of one size; normalise: uint8 [b, C, h, w] to float32;
    change: to train on, in the place of transform: may draw from torch's generator (`augmentation`).
    All are picklable, and `pixels` touches nothing but the file: it may run in any process or thread.
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
        """Where sample number `index` lies."""
        return f"{self.root}/{self.paths[index]}"

    def pixels(self, index: int) -> Tensor:
        """Sample number `index` as decoded, uint8 [C, H, W]. Raises pixels.BadImage, which names the file."""
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
        """As `batch`, each image made by `change` as (key, its index) says."""
        pixels, labels = self.changed(indices, key)
        return self.normalise(pixels), labels

    def changed(self, indices: Tensor, key: int) -> tuple[Tensor, Tensor]:
        """As `augmented`, not normalised: images uint8 [b, C, h, w]."""
        pixels = self.changed_pixels(map(self.pixels, indices.tolist()), indices, key)
        return pixels, self.labels.index_select(0, indices)

    def trained_on(self, pixels: Iterable[Tensor], indices: Tensor, key: int) -> Tensor:
        """Decoded images as `augmented` has those numbered `indices`: float32 [b, C, h, w]."""
        return self.normalise(self.changed_pixels(pixels, indices, key))

    def changed_pixels(self, pixels: Iterable[Tensor], indices: Tensor, key: int) -> Tensor:
        """As `trained_on`, not normalised: uint8 [b, C, h, w]."""
        made = torch.empty(len(indices), *self.shape, dtype=torch.uint8)
        if self.change is None:
            for image, into in zip(pixels, made, strict=True):
                into.copy_(self.transform(image))
            return made
        with own_draws(key) as of_sample:
            # One by one: an image that was just made is still in the processor's cache.
            for image, into, index in zip(pixels, made, indices.tolist(), strict=True):
                of_sample(index)
                into.copy_(self.change(image))
        return made
