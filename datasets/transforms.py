"""Transforms of decoded images and their masks: resize, crop, normalise, and random changes for training.

What a changed sample looks like follows from (key, sample index) alone, the key being of (seed, epoch): it is
the same for any number of ranks and of loader workers, in whatever order they work. torchvision's transforms
draw from torch's own generator, so that is seeded for each sample, and restored afterwards.
"""

from collections.abc import Callable, Iterator, Sequence
from functools import cache, partial
from typing import Any

import torch
from torch import Tensor

from .stream_seeds import stream_seed

# ImageNet's training images, on a scale of 0 to 1: torchvision's reference values.
IMAGENET_MEAN, IMAGENET_STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


def centre_crop(pixels: Tensor, *, resize: int, crop: int) -> Tensor:
    """The shorter side to `resize` pixels, bilinear with antialiasing; the centre of `crop` x `crop`.

    pixels: uint8 [C, H, W] of any size. The result is uint8 [C, crop, crop].
    """
    from torchvision.transforms.v2 import functional  # takes half a second; not for `prepare`

    resized = functional.resize(pixels, [resize], antialias=True)
    return functional.center_crop(resized, [crop, crop])


def resize_pair(image: Tensor, mask: Tensor, *, height: int, width: int) -> tuple[Tensor, Tensor]:
    """An image [C, H, W] and its mask [H, W], resized; the ratio of the sides may change.

    The image: bilinear with antialiasing; the mask: the label nearest to each pixel's centre.
    """
    from torchvision.transforms.v2 import InterpolationMode, functional  # takes half a second

    # torchvision's resize of a Mask takes the label at the corner of a pixel, the image its centre: they
    # would be up to half a pixel apart.
    size = [height, width]
    nearest = functional.resize(mask[None], size, interpolation=InterpolationMode.NEAREST_EXACT)
    return functional.resize(image, size, antialias=True), nearest[0]


def check_normalisation(mean: Sequence[float], std: Sequence[float], channels: int) -> None:
    """Raise ValueError unless there are `channels` finite numbers of each, and each std is above 0."""
    for key, values in (("mean", mean), ("std", std)):
        numbers = torch.tensor(values, dtype=torch.float32)
        if len(values) != channels or not numbers.isfinite().all() or (key == "std" and numbers.min() <= 0):
            above = " above 0" if key == "std" else ""
            grey = " (ImageNet in grey: dataset.mean=0.458 dataset.std=0.225)" if channels == 1 else ""
            raise ValueError(
                f"dataset.{key}={list(values)}: must be a finite number{above} for each of {channels} "
                f"channels, on a scale of 0 to 1{grey}"
            )


def normalise(pixels: Tensor, *, mean: Sequence[float], std: Sequence[float]) -> Tensor:
    """(pixels / 255 - mean) / std of pixels uint8 [..., C, H, W]: float32 of the same shape.

    mean, std: a number per channel, on a scale of 0 to 1. The result lies where the pixels do.
    """
    shift, scale = (for_pixels(tuple(values), pixels.device) for values in (mean, std))
    if pixels.device.type != "cpu":
        return pixels.to(torch.float32).sub_(shift).div_(scale)
    images = torch.empty(pixels.shape, dtype=torch.float32)
    # One by one, so that an image stays in the processor's cache for all three passes.
    for image, into in zip(pixels.flatten(0, -4), images.flatten(0, -4), strict=True):
        into.copy_(image).sub_(shift).div_(scale)
    return images


@cache
def for_pixels(values: tuple[float, ...], device: torch.device) -> Tensor:
    """The values [C, 1, 1] on a scale of 0 to 255. Kept: a GPU would be waited for each time."""
    return torch.tensor(values).mul_(255).view(-1, 1, 1).to(device)


# ------------------------------------------------------------------ random changes


Change = Callable[[Tensor], Tensor]
"""An image [C, H, W], uint8 or float32, to one of the same type; may draw from torch's generator."""

PairChange = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]
"""An image [C, H, W] and its mask [H, W] to others of the same types; may draw from torch's generator."""

UNLABELLED = 255  # of a pixel in a mask
SCALES = (0.5, 2.0)  # of the random factor of `scale_crop`
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


def seeded(indices: Tensor, key: int) -> Iterator[int]:
    """Yields each of `indices`, int64 [b], with torch's generator seeded for that sample, from (key, index).

    When the iteration ends the generator has the state it had before.
    """
    generator = torch.default_generator
    before = generator.get_state()
    try:
        for index in indices.tolist():
            generator.manual_seed(stream_seed(key, index))
            yield index
    finally:
        generator.set_state(before)


def scale_crop(
    image: Tensor,
    mask: Tensor,
    *,
    side: tuple[int, int],
    fill: Sequence[float],
    colours: Callable[[Tensor], Tensor] | None = None,
) -> tuple[Tensor, Tensor]:
    """An image [C, H, W] and its mask [H, W] at 0.5 to 2 times `side`; a random part of `side` of them.

    side: (height, width). Beyond the border the image is `fill`, one value per channel in the units of the
    image, and the mask unlabelled. colours: changes the image alone, before the crop, so that it does not
    change the fill.
    """
    from torchvision import tv_tensors
    from torchvision.transforms import v2

    low, high = SCALES
    factor = low + (high - low) * torch.rand(()).item()
    height, width = (max(1, round(factor * length)) for length in side)
    fills = {tv_tensors.Image: list(fill), tv_tensors.Mask: UNLABELLED}
    crop = v2.RandomCrop(side, pad_if_needed=True, fill=fills)
    scaled, labels = resize_pair(image, mask, height=height, width=width)
    return together(scaled if colours is None else colours(scaled), labels, transform=crop)


def pair_recipe(
    name: str, side: tuple[int, int], fill: Sequence[float], allowed: Sequence[str]
) -> PairChange | None:
    """The random change called `name` of an image and its mask, to `side` (height, width); None for `none`.

    allowed: some of PAIR_RECIPES; fill: see `scale_crop`. flip: left and right with probability 1/2.
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

    flip = partial(together, transform=v2.RandomHorizontalFlip())
    if name == "flip":
        return v2.Compose([partial(resize_pair, height=side[0], width=side[1]), flip])
    jitter = v2.ColorJitter(brightness=0.5, contrast=0.5, saturation=0.5)
    colours = jitter if name == "scale_crop_flip_jitter" else None
    return v2.Compose([partial(scale_crop, side=side, fill=tuple(fill), colours=colours), flip])


def together(image: Tensor, mask: Tensor, *, transform: Callable[..., Any]) -> tuple[Tensor, Tensor]:
    """Apply a transform of torchvision (v2) to an image and its mask; the results are plain tensors."""
    from torchvision import tv_tensors

    image, mask = transform(tv_tensors.Image(image), tv_tensors.Mask(mask))
    return image.as_subclass(Tensor), mask.as_subclass(Tensor)
