"""Random changes of training images and their masks, with random numbers of each sample's own.

What a sample looks like follows from (key, sample index) alone, the key being of (seed, epoch): it is the
same for any number of ranks and of loader workers, in whatever order they work. torchvision's transforms draw
from torch's own generator, so that is set for each sample, and put back afterwards.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from .sampler import stream_seed
from .transforms import ResizePair

Change = Callable[[Tensor], Tensor]
"""An image [C, H, W], uint8 or float32, to one of the same type; may draw from torch's generator."""

PairChange = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]
"""An image [C, H, W] and its mask [H, W] to others of the same types; may draw from torch's generator."""

UNLABELLED = 255  # of a pixel in a mask
RECIPES = ("none", "flip", "crop_flip", "resized_crop_flip")
PAIR_RECIPES = ("none", "flip", "scale_crop_flip", "scale_crop_flip_jitter")


def recipe(name: str, side: tuple[int, int]) -> Change | None:
    """The changes called `name`, to images of `side` (height, width); None for none.

    flip: left and right, one in two. crop_flip: a crop of that size from the image with 4 pixels of 0 around
    it, and flip; as of the CIFAR experiments of He et al. 2016 (arXiv 1512.03385, section 4.2).
    resized_crop_flip: a part of 8 to 100 % of the area and a ratio of 3:4 to 4:3 is enlarged to that size,
    and flip; as of Szegedy et al. 2015 (arXiv 1409.4842, section 6).
    Raises ValueError with the known names.
    """
    if name not in RECIPES:
        raise ValueError(f"dataset.augment={name}: must be one of {', '.join(RECIPES)}")
    if name == "none":
        return None
    from torchvision.transforms import v2  # takes a second to import, and few runs need it

    flip = v2.RandomHorizontalFlip()
    if name == "crop_flip":
        return v2.Compose([v2.RandomCrop(side, padding=4), flip])
    if name == "resized_crop_flip":
        return v2.Compose([v2.RandomResizedCrop(side, antialias=True), flip])
    return flip


def epoch_key(seed: int, epoch: int) -> int:
    """The key of an epoch's changes, from the run's seed of augmentation."""
    return stream_seed(seed, "epoch", epoch)


@contextmanager
def own_draws(key: int) -> Iterator[Callable[[int], None]]:
    """Inside, what is yielded has torch's generator draw what belongs to a sample under `key`, from then on.

    Afterwards the generator is as it was before.
    """
    generator = torch.default_generator
    before = generator.get_state()

    def of_sample(index: int) -> None:
        generator.manual_seed(stream_seed(key, index))

    try:
        yield of_sample
    finally:
        generator.set_state(before)


@dataclass(frozen=True, kw_only=True)
class ScaleCrop:
    """An image and its mask brought to `side` times a factor drawn from `scales`; of that a part of `side`.

    side: (height, width). The part's place is drawn. Beyond the border the image is `fill`, one value for
    each channel in its own units, and the mask unlabelled. colours: changes the image alone, before that: the
    fill stays what it is.
    """

    side: tuple[int, int]
    fill: tuple[float, ...]
    scales: tuple[float, float] = (0.5, 2.0)
    colours: Callable[[Tensor], Tensor] | None = None

    def __call__(self, image: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        """Of an image [C, H, W] and its mask [H, W]."""
        from torchvision import tv_tensors
        from torchvision.transforms import v2

        low, high = self.scales
        factor = low + (high - low) * torch.rand(()).item()
        height, width = (max(1, round(factor * length)) for length in self.side)
        fills = {tv_tensors.Image: list(self.fill), tv_tensors.Mask: UNLABELLED}
        crop = v2.RandomCrop(self.side, pad_if_needed=True, fill=fills)
        scaled, labels = ResizePair(height=height, width=width)(image, mask)
        return _together(crop, scaled if self.colours is None else self.colours(scaled), labels)


@dataclass(frozen=True)
class Together:
    """A transform of torchvision (v2) that changes image and mask alike, or the image alone."""

    transform: Callable[..., Any]

    def __call__(self, image: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        """Of an image [C, H, W] and its mask [H, W]."""
        return _together(self.transform, image, mask)


def pair_recipe(
    name: str, side: tuple[int, int], fill: Sequence[float], allowed: Sequence[str]
) -> PairChange | None:
    """The changes called `name` of an image together with its mask, to `side` (height, width); None for none.

    allowed: of PAIR_RECIPES; fill: see `ScaleCrop`. flip: left and right, one in two. scale_crop_flip: a part
    of the image at 0.5 to 2 times `side`, and flip; after Chen et al. 2017 (arXiv 1706.05587, section 4), who
    scale the stored image and judge models at its size, where here both are done at `side`.
    scale_crop_flip_jitter: and brightness, contrast and saturation times 0.5 to 1.5, in
    an order that is drawn, of the image alone (uint8). Raises ValueError with `allowed`.
    """
    if name not in allowed:
        raise ValueError(f"dataset.augment={name}: must be one of {', '.join(allowed)}")
    if name == "none":
        return None
    from torchvision.transforms import v2

    flip = Together(v2.RandomHorizontalFlip())
    if name == "flip":
        return v2.Compose([ResizePair(height=side[0], width=side[1]), flip])
    jitter = v2.ColorJitter(brightness=0.5, contrast=0.5, saturation=0.5)
    colours = jitter if name == "scale_crop_flip_jitter" else None
    return v2.Compose([ScaleCrop(side=side, fill=tuple(fill), colours=colours), flip])


def _together(transform: Callable[..., Any], image: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
    """`transform` of both, which then are plain tensors again."""
    from torchvision import tv_tensors

    image, mask = transform(tv_tensors.Image(image), tv_tensors.Mask(mask))
    return image.as_subclass(Tensor), mask.as_subclass(Tensor)
