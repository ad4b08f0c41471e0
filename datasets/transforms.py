"""What happens to decoded pixels before a model judges them: resize, cut the centre, normalise.

Pure functions of one image (or of an image and its mask), apart from decoding, so that other transforms can
take their place.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

# Of ImageNet's training images, on a scale of 0 to 1: torchvision's reference values.
IMAGENET_MEAN, IMAGENET_STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
LONGEST = 16


@dataclass(frozen=True, kw_only=True)
class CentreCrop:
    """The shorter side to `resize` pixels, bilinear with antialiasing; the centre of `crop` x `crop`.

    Whatever the file's size, the result is uint8 [C, crop, crop]. Of an image that is more than `LONGEST`
    times as long as wide the ends are cut off before: nothing of them is in the centre, and enlarged they
    take gigabytes. Raises ValueError for sizes that do not fit.
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
        """Of pixels uint8 [C, H, W]."""
        from torchvision.transforms.v2 import functional  # half a second, and `prepare` needs none of it

        resized = functional.resize(_without_ends(pixels), [self.resize], antialias=True)
        return functional.center_crop(resized, [self.crop, self.crop])


def _without_ends(pixels: Tensor) -> Tensor:
    """The middle of a long image [C, H, W], as far from its centre on one side as on the other."""
    kept = LONGEST * min(pixels.shape[-2:])
    for axis in (-2, -1):
        cut = (pixels.shape[axis] - kept) // 2
        if cut > 0:
            pixels = pixels.narrow(axis, cut, pixels.shape[axis] - 2 * cut)
    return pixels


@dataclass(frozen=True, kw_only=True)
class ResizePair:
    """An image and its mask to `height` x `width` pixels, each side by a factor of its own.

    The image bilinear with antialiasing; of the mask the label that lies nearest to each pixel's centre.
    Raises ValueError for a size below 1.
    """

    height: int
    width: int

    def __post_init__(self) -> None:
        for key in ("height", "width"):
            if getattr(self, key) < 1:
                raise ValueError(f"dataset.{key}={getattr(self, key)}: must be >= 1 pixel")

    def __call__(self, image: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        """Of an image [C, H, W] and its mask [H, W]."""
        from torchvision.transforms.v2 import InterpolationMode, functional  # half a second

        size = [self.height, self.width]
        # torchvision's own resize of a Mask takes the label at a pixel's corner, where the image has its
        # centre: up to half a pixel beside it.
        nearest = functional.resize(mask[None], size, interpolation=InterpolationMode.NEAREST_EXACT)
        return functional.resize(image, size, antialias=True), nearest[0]


@dataclass(frozen=True, kw_only=True)
class Normalise:
    """(pixels / 255 - mean) / std, one number of each per channel, on a scale of 0 to 1.

    Raises ValueError when there is not one for each of `channels`, one is no finite number, or a std is not
    above 0.
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
        """Of pixels uint8 [..., C, H, W]: float32 of the same shape."""
        mean, std = (torch.tensor(values).mul_(255).view(-1, 1, 1) for values in (self.mean, self.std))
        made = torch.empty(pixels.shape, dtype=torch.float32)
        # One image after the other stays in the processor's cache for all three passes.
        for image, into in zip(pixels.flatten(0, -4), made.flatten(0, -4), strict=True):
            into.copy_(image).sub_(mean).div_(std)
        return made
