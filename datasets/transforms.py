"""Transforms of decoded images and their masks: resize, crop, normalise, and random changes for training.

What a changed sample looks like follows from (key, sample index) alone, the key being of (seed, epoch): it is
the same for any number of ranks and of loader workers, in whatever order they work. torchvision's transforms
draw from torch's own generator, so that is seeded for each sample, and restored afterwards.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from .stream_seeds import stream_seed

# ImageNet's training images, on a scale of 0 to 1: torchvision's reference values.
IMAGENET_MEAN, IMAGENET_STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


@dataclass(frozen=True, kw_only=True)
class CentreCrop:
    """The shorter side to `resize` pixels, bilinear with antialiasing; the centre of `crop` x `crop`.

    The result is uint8 [C, crop, crop] for images of any size. Raises ValueError for sizes that do not fit.
    """

    resize: int
    crop: int

    def __post_init__(self) -> None:
        if self.crop < 1:
            raise ValueError(f"dataset.crop={self.crop}: must be >= 1 pixel")
        if self.resize < self.crop:
            raise ValueError(
                f"dataset.resize={self.resize}: must be >= dataset.crop={self.crop}, what is cut from it"
            )

    def __call__(self, pixels: Tensor) -> Tensor:
        """Transform pixels uint8 [C, H, W]."""
        from torchvision.transforms.v2 import functional  # takes half a second; not for `prepare`

        resized = functional.resize(pixels, [self.resize], antialias=True)
        return functional.center_crop(resized, [self.crop, self.crop])


@dataclass(frozen=True, kw_only=True)
class ResizePair:
    """Resizes an image and its mask to `height` x `width` pixels; the ratio of the sides may change.

    The image: bilinear with antialiasing; the mask: the label nearest to each pixel's centre. Raises
    ValueError for a size below 1.
    """

    height: int
    width: int

    def __post_init__(self) -> None:
        for key in ("height", "width"):
            if getattr(self, key) < 1:
                raise ValueError(f"dataset.{key}={getattr(self, key)}: must be >= 1 pixel")

    def __call__(self, image: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        """Transform an image [C, H, W] and its mask [H, W]."""
        from torchvision.transforms.v2 import InterpolationMode, functional  # takes half a second

        size = [self.height, self.width]
        # torchvision's resize of a Mask takes the label at the corner of a pixel, the image its centre: they
        # would be up to half a pixel apart.
        nearest = functional.resize(mask[None], size, interpolation=InterpolationMode.NEAREST_EXACT)
        return functional.resize(image, size, antialias=True), nearest[0]


@dataclass(frozen=True, kw_only=True)
class Normalise:
    """(pixels / 255 - mean) / std; mean and std have a number per channel, on a scale of 0 to 1.

    Raises ValueError if their number is not `channels`, if one is not finite, or a std is not above 0.
    """

    mean: Sequence[float]
    std: Sequence[float]
    channels: int

    def __post_init__(self) -> None:
        for key, values in (("mean", self.mean), ("std", self.std)):
            if len(values) != self.channels:
                grey = " (ImageNet in grey: dataset.mean=0.458 dataset.std=0.225)" * (self.channels == 1)
                numbers = f"{self.channels} number{'s' * (self.channels > 1)}"
                raise ValueError(
                    f"dataset.{key}={list(values)}: must be {numbers}, one per channel on a scale of 0 to "
                    f"1{grey}"
                )
            if not torch.tensor(values, dtype=torch.float32).isfinite().all():
                raise ValueError(f"dataset.{key}={list(values)}: must be finite numbers")
        if not torch.tensor(self.std, dtype=torch.float32).min() > 0:
            raise ValueError(f"dataset.std={list(self.std)}: must be > 0")

    def __call__(self, pixels: Tensor) -> Tensor:
        """Normalise pixels uint8 [..., C, H, W] to float32 of the same shape."""
        mean, std = (torch.tensor(values).mul_(255).view(-1, 1, 1) for values in (self.mean, self.std))
        images = torch.empty(pixels.shape, dtype=torch.float32)
        # One by one, so that an image stays in the processor's cache for all three passes.
        for image, into in zip(pixels.flatten(0, -4), images.flatten(0, -4), strict=True):
            into.copy_(image).sub_(mean).div_(std)
        return images


# ------------------------------------------------------------------ random changes


Change = Callable[[Tensor], Tensor]
"""An image [C, H, W], uint8 or float32, to one of the same type; may draw from torch's generator."""

PairChange = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]
"""An image [C, H, W] and its mask [H, W] to others of the same types; may draw from torch's generator."""

UNLABELLED = 255  # of a pixel in a mask
RECIPES = ("none", "flip", "crop_flip", "resized_crop_flip")
PAIR_RECIPES = ("none", "flip", "scale_crop_flip", "scale_crop_flip_jitter")


def recipe(name: str, side: tuple[int, int]) -> Change | None:
    """The random change called `name`, for images of `side` (height, width); None for `none`.

    flip: left and right with probability 1/2. crop_flip: a crop of that size from the image padded with 4
    pixels of 0, and flip, as in the CIFAR experiments of He et al. 2016 (arXiv 1512.03385, section 4.2).
    resized_crop_flip: a part of 8 to 100 % of the area and a ratio of 3:4 to 4:3 is resized to that size, and
    flip, as in Szegedy et al. 2015 (arXiv 1409.4842, section 6). Raises ValueError with the known names.
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
    """The key of the random changes of an epoch, from the run's seed of augmentation."""
    return stream_seed(seed, "epoch", epoch)


@contextmanager
def own_draws(key: int) -> Iterator[Callable[[int], None]]:
    """Yields a function that seeds torch's generator for a sample, from (key, its index).

    On exit the generator has the state it had before.
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
    """Resizes an image and its mask to `side` times a random factor, and cuts out a random part of `side`.

    side: (height, width); scales: range of the factor. Beyond the border the image is `fill`, one value per
    channel in the units of the image, and the mask unlabelled. colours: changes the image alone, before the
    crop, so that it does not change the fill.
    """

    side: tuple[int, int]
    fill: tuple[float, ...]
    scales: tuple[float, float] = (0.5, 2.0)
    colours: Callable[[Tensor], Tensor] | None = None

    def __call__(self, image: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        """Transform an image [C, H, W] and its mask [H, W]."""
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
    """Applies a transform of torchvision (v2) to an image and its mask together."""

    transform: Callable[..., Any]

    def __call__(self, image: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        """Transform an image [C, H, W] and its mask [H, W]."""
        return _together(self.transform, image, mask)


def pair_recipe(
    name: str, side: tuple[int, int], fill: Sequence[float], allowed: Sequence[str]
) -> PairChange | None:
    """The random change called `name` of an image and its mask, to `side` (height, width); None for `none`.

    allowed: some of PAIR_RECIPES; fill: see `ScaleCrop`. flip: left and right with probability 1/2.
    scale_crop_flip: a part of the image at 0.5 to 2 times `side`, and flip; after Chen et al. 2017 (arXiv
    1706.05587, section 4), who scale the stored image and evaluate at its size; here both are done at `side`.
    scale_crop_flip_jitter: also brightness, contrast and saturation times 0.5 to 1.5, in random order, of the
    image alone (uint8). Raises ValueError with `allowed`.
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
    """Apply `transform` to both; the results are plain tensors."""
    from torchvision import tv_tensors

    image, mask = transform(tv_tensors.Image(image), tv_tensors.Mask(mask))
    return image.as_subclass(Tensor), mask.as_subclass(Tensor)
