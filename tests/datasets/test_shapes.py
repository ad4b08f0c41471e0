"""Shapes on noise: masks that fit the images, unlabelled outlines, and single pixels that do not tell."""

import pytest
import torch
from torch import Tensor

from daso_bench.datasets.shapes import SHAPES, TINTS, Shapes, _inside, _outlined
from daso_bench.datasets.transforms import UNLABELLED

SMALL = Shapes(samples=40, validation_samples=8, test_samples=12, height=24, width=20)


def every(dataset: Shapes, name: str = "train") -> tuple[Tensor, Tensor]:
    split = dataset.load().split(name)
    return split.batch(torch.arange(len(split)))


def test_sizes_and_shapes_follow_the_fields():
    data = SMALL.load()
    assert (data.name, data.classes, data.shape) == ("shapes", 5, (3, 24, 20))
    assert (SMALL.task, SMALL.info().classes, SMALL.info().samples) == (
        "segmentation",
        5,
        {"train": 40, "validation": 8, "test": 12},
    )
    assert [len(data.split(name)) for name in ("train", "validation", "test")] == [40, 8, 12]
    images, masks = data.train.batch(torch.tensor([3, 0, 39]))
    assert (images.shape, images.dtype) == ((3, 3, 24, 20), torch.float32)
    assert (masks.shape, masks.dtype) == ((3, 24, 20), torch.int64)


def test_every_class_and_unlabelled_pixels_occur():
    _, masks = every(Shapes())
    assert masks.unique().tolist() == [0, 1, 2, 3, 4, UNLABELLED]
    share = (masks == UNLABELLED).float().mean()
    assert 0.1 < share < 0.2
    assert all((masks == label).float().mean() > 0.02 for label in range(5))


def test_where_two_labels_meet_neither_pixel_is_labelled():
    mask = torch.tensor([[0, 0, 0, 0], [0, 0, 1, 1], [0, 0, 1, 1], [2, 2, 1, 1]], dtype=torch.uint8)
    n = UNLABELLED
    expected = [[0, 0, n, n], [0, n, n, n], [n, n, n, 1], [n, n, n, 1]]
    assert _outlined(mask).tolist() == expected
    _, masks = every(SMALL)
    for dim in (1, 2):
        size = masks.shape[dim] - 1
        one, next_to_it = masks.narrow(dim, 0, size), masks.narrow(dim, 1, size)
        assert ((one == next_to_it) | (one == n) | (next_to_it == n)).all()


@pytest.mark.parametrize(
    ("shape", "rows"),
    [
        ("disc", [".###.", "#####", "#####", "#####", ".###."]),
        ("box", ["#####"] * 5),
        ("triangle", ["..#..", "..#..", ".###.", ".###.", "#####"]),
        ("cross", ["..#..", "..#..", "#####", "..#..", "..#.."]),
    ],
)
def test_the_forms_by_hand(shape: str, rows: list[str]):
    """Five pixels a side, half an extent of 2.3 from the middle of the third."""
    places = torch.arange(-2.0, 3.0)
    inside = _inside(shape, places.view(-1, 1), places.view(1, -1), 2.3)
    assert ["".join("#" if pixel else "." for pixel in row) for row in inside.tolist()] == rows
    assert shape in SHAPES


def test_a_mask_says_where_its_images_colour_is_the_kinds_own():
    """Without noise the ground is 0, and a shape's pixels are on average its kind's tint, halved."""
    images, masks = every(Shapes(noise=0.0))
    pixels = images.permute(0, 2, 3, 1)
    assert (pixels[masks == 0] == 0).all()
    for kind, tint in enumerate(TINTS):
        mean = pixels[masks == 1 + kind].mean(0)
        assert torch.allclose(mean, torch.tensor(tint) / 2, atol=0.08)


def test_a_sample_is_the_same_in_every_batch_and_process():
    first, second = SMALL.load(), SMALL.load()
    images, masks = first.train.batch(torch.tensor([5, 30, 17]))
    alone, mask = second.train.batch(torch.tensor([17]))
    assert torch.equal(images[2:], alone)
    assert torch.equal(masks[2:], mask)
    other = Shapes(samples=40, height=24, width=20, seed=1)
    assert not torch.equal(every(other)[1], every(SMALL)[1])
    assert not torch.equal(every(SMALL, "test")[1], every(SMALL)[1][:12])
