"""Random changes of training images, with random numbers of each sample's own.

What a sample looks like follows from (key, sample index) alone, the key being of (seed, epoch): it is the
same for any number of ranks and of loader workers, in whatever order they work. torchvision's transforms draw
from torch's own generator, so that is set for each sample, and put back afterwards.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from .sampler import stream_seed

Change = Callable[[Tensor], Tensor]
"""An image [C, H, W], uint8 or float32, to one of the same type; may draw from torch's generator."""

PairChange = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]
"""An image [C, H, W] and its mask [H, W] to others of the same types; may draw from torch's generator."""

RECIPES = ("none", "flip", "crop_flip", "resized_crop_flip")


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
