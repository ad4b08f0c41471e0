"""Shapes on noise with a label for each pixel: a small, learnable segmentation set, computed in memory.

An image shows two to four shapes (disc, box, triangle or cross) on a grey background; later ones cover
earlier ones; normal noise is added. Half of a shape's colour depends on its kind, half is random, so that its
form and not a single pixel decides its class. Classes: 0 the background, then the shapes in that order.
Pixels next to a pixel with another label are unlabelled (255), like the outlines in PASCAL VOC.
"""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from .data import Data, Split
from .dataset import Dataset, DatasetInfo, at_least
from .stream_seeds import stream_seed
from .transforms import UNLABELLED, PairChange, pair_recipe

SHAPES = ("disc", "box", "triangle", "cross")
FEWEST, MOST = 2, 4  # shapes in an image
TINTS = ((1.0, -1.0, -1.0), (-1.0, 1.0, -1.0), (-1.0, -1.0, 1.0), (1.0, 1.0, 1.0))  # of a shape's colour
TINGED = 0.5  # the share of the kind's tint in a colour; the rest is random
SMALLEST, LARGEST = 0.15, 0.25  # half a shape's extent, as a share of the image's shorter side
RECIPES = ("none", "flip", "scale_crop_flip")  # no jitter: colours do not have the range of a photograph
ARM = 0.4  # half the width of a cross's bars, as a share of its half extent


@dataclass(frozen=True, kw_only=True)
class Shapes(Dataset):
    """Images [3, height, width] around 0 and masks [height, width] of five classes and 255.

    samples, validation_samples, test_samples: size of each split; height, width: pixels, at least 16;
    noise: standard deviation, the colours being between -1 and 1; augment: random changes of training images
    and masks (`transforms.pair_recipe`); seed: of the data, not of the run.
    Raises ValueError for a number out of range.
    """

    name: ClassVar[str] = "shapes"
    task: ClassVar[str] = "segmentation"
    classes: ClassVar[int] = 1 + len(SHAPES)

    samples: int = 512
    validation_samples: int = 64
    test_samples: int = 128
    height: int = 32
    width: int = 32
    noise: float = 0.5
    augment: str = "none"
    seed: int = 0

    def __post_init__(self) -> None:
        for key in ("samples", "validation_samples", "test_samples"):
            at_least(key, getattr(self, key), 1)
        for key in ("height", "width"):
            at_least(key, getattr(self, key), 16)
        at_least("noise", self.noise, 0)
        self.change  # noqa: B018 (checks its value)

    def info(self) -> DatasetInfo:
        samples = {"train": self.samples, "validation": self.validation_samples, "test": self.test_samples}
        return DatasetInfo(shape=self.shape, classes=self.classes, samples=samples)

    @property
    def shape(self) -> tuple[int, int, int]:
        """Of an image, [C, H, W]."""
        return 3, self.height, self.width

    @property
    def change(self) -> PairChange | None:
        """Changes training images and masks at random; None without random changes."""
        return pair_recipe(self.augment, (self.height, self.width), (0.0,) * 3, RECIPES)

    def load(self) -> Data:
        """Draws all images; the same for the same fields on every machine."""
        return Data(
            name=self.name,
            classes=self.classes,
            shape=self.shape,
            train=self._draw("train", self.samples),
            validation=self._draw("validation", self.validation_samples),
            test=self._draw("test", self.test_samples),
        )

    def _draw(self, name: str, samples: int) -> Split:
        generator = torch.Generator().manual_seed(stream_seed(self.seed, "shapes", name))
        drawn = [self._sample(generator) for _ in range(samples)]
        images = torch.stack([image for image, _ in drawn])
        images += self.noise * torch.randn(images.shape, generator=generator)
        masks = torch.stack([mask for _, mask in drawn])
        change = self.change if name == "train" else None
        return Split(images=images, labels=masks, mean=(0.0,) * 3, std=(1.0,) * 3, augment=change)

    def _sample(self, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """An image [3, H, W] without noise, and its mask uint8 [H, W]."""
        image = torch.zeros(self.shape)
        mask = torch.zeros(self.height, self.width, dtype=torch.uint8)
        rows = torch.arange(self.height).view(-1, 1) + 0.5
        columns = torch.arange(self.width).view(1, -1) + 0.5
        for _ in range(int(torch.randint(FEWEST, MOST + 1, (1,), generator=generator))):
            kind = int(torch.randint(len(SHAPES), (1,), generator=generator))
            row, column, large, *colour = torch.rand(6, generator=generator).tolist()
            half = (SMALLEST + (LARGEST - SMALLEST) * large) * min(self.height, self.width)
            inside = _inside(SHAPES[kind], rows - row * self.height, columns - column * self.width, half)
            mask[inside] = 1 + kind
            random_colour = 2 * torch.tensor(colour) - 1
            image[:, inside] = (TINGED * torch.tensor(TINTS[kind]) + (1 - TINGED) * random_colour).view(3, 1)
        return image, _outlined(mask)


def _inside(shape: str, down: Tensor, right: Tensor, half: float) -> Tensor:
    """Which pixels [H, W] belong to a shape; down [H, 1] and right [1, W] count from its centre."""
    across, along = right.abs(), down.abs()
    if shape == "disc":
        return down**2 + right**2 <= half**2
    if shape == "box":
        return (across <= half) & (along <= half)
    if shape == "triangle":  # its tip is at the top
        return (2 * across <= down + half) & (down <= half)
    arms = (across <= ARM * half) | (along <= ARM * half)
    return arms & (across <= half) & (along <= half)


def _outlined(mask: Tensor) -> Tensor:
    """`mask` [H, W] with 255 wherever a neighbour has another label."""
    changes = torch.zeros_like(mask, dtype=torch.bool)
    for dim in (0, 1):
        size = mask.shape[dim] - 1
        differs = mask.narrow(dim, 0, size) != mask.narrow(dim, 1, size)
        changes.narrow(dim, 0, size).logical_or_(differs)
        changes.narrow(dim, 1, size).logical_or_(differs)
    return mask.masked_fill(changes, UNLABELLED)
