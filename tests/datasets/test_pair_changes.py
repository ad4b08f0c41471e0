"""Random changes of images with their masks: both move alike, whoever makes them, in any order."""

from functools import partial

import pytest
import torch
from torch import Tensor

from daso_bench.datasets.data import Split
from daso_bench.datasets.shapes import RECIPES, Shapes
from daso_bench.datasets.transforms import (
    PAIR_RECIPES,
    UNLABELLED,
    PairChange,
    epoch_key,
    pair_recipe,
    resize_pair,
    scale_crop,
    seeded,
)

SIDE = (24, 40)
PLAIN = {"mean": (0.0,) * 3, "std": (1.0,) * 3}
FILL = (7, 8, 9)
CHANGES = [name for name in PAIR_RECIPES if name != "none"]


def change_of(name: str, side: tuple[int, int] = SIDE, fill: tuple[float, ...] = FILL) -> PairChange:
    change = pair_recipe(name, side, fill, PAIR_RECIPES)
    assert change is not None
    return change


def drawn(change: PairChange, image: Tensor, mask: Tensor, key: int) -> tuple[Tensor, Tensor]:
    """Image and mask changed as sample 0 under `key`."""
    (changed,) = (change(image, mask) for _ in seeded(torch.tensor([0]), key))
    return changed


def blocks(side: tuple[int, int], of: int) -> Tensor:
    """A mask of squares of `of` pixels: labels 0 to 18 and unlabelled."""
    rows, columns = (torch.arange(length) // of for length in side)
    labels = (rows[:, None] * 7 + columns[None] * 3) % 20
    return labels.masked_fill(labels == 19, UNLABELLED).to(torch.uint8)


def code(mask: Tensor) -> Tensor:
    """The colour [3, H, W] that stands for a label in the images here."""
    return torch.stack([mask // 2, 255 - mask, (mask.int() * 37 % 256).to(torch.uint8)])


def inner(mask: Tensor, reach: int) -> Tensor:
    """Pixels [H, W] whose neighbours as far as `reach` all have their label, none beyond the border."""
    own = mask.float()[None, None]
    size = 2 * reach + 1
    inside = torch.zeros_like(mask, dtype=torch.bool)
    low = -torch.nn.functional.max_pool2d(-own, size, 1)
    same = low == torch.nn.functional.max_pool2d(own, size, 1)
    inside[reach:-reach, reach:-reach] = same[0, 0]
    return inside


@pytest.mark.parametrize("name", [name for name in CHANGES if "jitter" not in name])
@pytest.mark.parametrize("stored", [SIDE, (48, 80), (30, 90)])
def test_a_pixel_that_shows_its_label_shows_it_afterwards(name: str, stored: tuple[int, int]) -> None:
    mask, seen = blocks(stored, 12), 0
    for key in range(30):
        image, labels = drawn(change_of(name), code(mask), mask, key)
        assert (image.shape, image.dtype) == ((3, *SIDE), torch.uint8)
        assert (labels.shape, labels.dtype) == (SIDE, torch.uint8)
        shown = (image == code(labels)).all(0)
        beyond = (labels == UNLABELLED) & (image == torch.tensor(FILL).view(3, 1, 1)).all(0)
        away = inner(labels, 2)
        assert bool((shown | beyond)[away].all())
        seen += int(shown[away].sum())
    assert seen > 30 * 24 * 40 * 0.05


def test_a_columns_number_is_its_label_on_average_to_a_tenth_of_a_pixel() -> None:
    """An image whose value is the column, and a mask that says it too: no half pixel between them."""
    columns = torch.arange(200)
    image = columns.float().expand(1, 8, 200).contiguous()
    mask = columns.to(torch.uint8).expand(8, 200).contiguous()
    scale = partial(scale_crop, side=(8, 200), fill=(0.0,))
    off = []
    for key in range(60):
        changed, labels = drawn(scale, image, mask, key)
        known = labels != UNLABELLED
        known &= (labels > 4) & (labels < 195)  # at the border there is less to average
        off.append((changed[0] - labels)[known])
    every = torch.cat(off)
    assert every.abs().max() <= 1.01
    assert abs(every.mean()) < 0.1


@pytest.mark.parametrize("name", ["scale_crop_flip", "scale_crop_flip_jitter"])
def test_what_lies_beyond_the_border_is_unlabelled_and_has_the_fills_colour(name: str) -> None:
    image, mask = torch.full((3, *SIDE), 200, dtype=torch.uint8), torch.full(SIDE, 3, dtype=torch.uint8)
    corners, shares = set(), []
    for key in range(120):
        changed, labels = drawn(change_of(name), image, mask, key)
        inside = labels == 3
        assert ((labels == UNLABELLED) | inside).all()
        assert (changed[:, inside] == (200 if "jitter" not in name else changed[:, inside][:, :1])).all()
        assert torch.equal(changed[:, ~inside], torch.tensor(FILL)[:, None].expand(3, int((~inside).sum())))
        rows, columns = inside.any(1).nonzero().flatten(), inside.any(0).nonzero().flatten()
        assert int(inside.sum()) == len(rows) * len(columns), "one rectangle"
        corners.add((int(rows[0]), int(columns[0])))
        shares.append(float(inside.double().mean()))
    assert min(shares) < 0.5**2 + 0.05
    assert 0.5 < sum(share == 1 for share in shares) / len(shares) < 0.8, "two thirds of 0.5 to 2 are above 1"
    assert len(corners) > 25, "a small image lies anywhere"


def a_split(name: str, samples: int = 12) -> Split:
    masks = torch.stack([blocks(SIDE, 4 + number % 5) for number in range(samples)])
    images = torch.stack([code(mask) for mask in masks]).float() / 100
    return Split(images=images, labels=masks, augment=pair_recipe(name, SIDE, (0.0,) * 3, RECIPES), **PLAIN)


@pytest.mark.parametrize("name", RECIPES)
def test_neither_order_nor_pieces_nor_earlier_draws_matter(name: str) -> None:
    split, key = a_split(name), epoch_key(5, 2)
    images, masks = split.augmented(torch.arange(12), key)
    assert (images.dtype, masks.dtype) == (torch.float32, torch.int64)
    order = torch.randperm(12, generator=torch.Generator().manual_seed(1))
    torch.manual_seed(11)
    expected = torch.rand(3)
    torch.manual_seed(11)
    pieces = [split.augmented(piece, key) for piece in order.split([5, 0, 7])]
    assert torch.equal(torch.rand(3), expected), "torch's generator is left where it was"
    assert torch.equal(torch.cat([image for image, _ in pieces]), images[order])
    assert torch.equal(torch.cat([mask for _, mask in pieces]), masks[order])
    plain = split.batch(torch.arange(12))
    changed = name != "none"
    assert torch.equal(plain[0], images) is not changed
    assert torch.equal(plain[1], masks) is not changed
    assert torch.equal(plain[1], split.labels.long()), "what is stored is not touched"


def test_shapes_are_changed_for_training_alone() -> None:
    plain = Shapes(samples=8, validation_samples=4, test_samples=4).load()
    changed = Shapes(samples=8, validation_samples=4, test_samples=4, augment="scale_crop_flip").load()
    indices = torch.arange(4)
    for name in ("train", "validation", "test"):
        same = torch.equal(changed.split(name).augmented(indices, 1)[1], plain.split(name).batch(indices)[1])  # pyright: ignore
        assert same is (name != "train")
        assert torch.equal(changed.split(name).batch(indices)[0], plain.split(name).batch(indices)[0])


def test_resized_by_hand() -> None:
    image = torch.tensor([[[0.0, 4.0, 8.0, 12.0]]])
    mask = torch.tensor([[1, 2, 3, 255]], dtype=torch.uint8)
    same = resize_pair(image, mask, height=1, width=4)
    assert torch.equal(same[0], image)
    assert torch.equal(same[1], mask)
    wide, labels = resize_pair(image, mask, height=1, width=8)
    assert wide.flatten().tolist() == [0, 1, 3, 5, 7, 9, 11, 12]
    assert labels.tolist() == [[1, 1, 2, 2, 3, 3, 255, 255]]
    tall, labels = resize_pair(image, mask, height=3, width=3)
    assert tall.shape == (1, 3, 3)
    assert labels.tolist() == [[1, 3, 255]] * 3  # the centres 0.67, 2, 3.33 lie in pixels 0, 2 and 3
