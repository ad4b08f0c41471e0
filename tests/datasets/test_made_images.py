"""Images that are made: patterns to learn, shapes with masks that fit; the same in every process."""

import pytest
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from daso_bench.datasets.shapes import SHAPES, TINTS, Shapes, _inside, _outlined
from daso_bench.datasets.synthetic import NoisyPatterns, Synthetic
from daso_bench.datasets.transforms import UNLABELLED

SMALL = Shapes(samples=40, validation_samples=8, test_samples=12, height=24, width=20)


def every(dataset: Synthetic | Shapes, name: str = "train") -> tuple[Tensor, Tensor]:
    split = dataset.load().split(name)
    return split.batch(torch.arange(len(split)))


@pytest.mark.parametrize(
    ("dataset", "other"),
    [(Synthetic(seed=3), Synthetic(seed=4)), (SMALL, Shapes(samples=40, height=24, width=20, seed=1))],
    ids=["patterns", "shapes"],
)
def test_a_sample_is_the_same_in_every_batch_and_process(
    dataset: Synthetic | Shapes, other: Synthetic | Shapes
) -> None:
    first, second = dataset.load(), dataset.load()
    images, targets = first.train.batch(torch.tensor([5, 30, 17]))
    alone, target = second.train.batch(torch.tensor([17]))
    assert torch.equal(images[2:], alone)
    assert torch.equal(targets[2:], target)
    assert not torch.equal(images[:1], other.load().train.batch(torch.tensor([5]))[0])
    assert not torch.equal(every(dataset, "test")[0][:12], every(dataset)[0][:12])


# ------------------------------------------------------------------ patterns


def test_sizes_of_patterns_follow_the_fields() -> None:
    dataset = Synthetic(
        samples=70, validation_samples=20, test_samples=30, channels=2, height=5, width=12, classes=7
    )
    data = dataset.load()
    assert (data.name, data.classes, data.shape) == ("synthetic", 7, (2, 5, 12))
    assert [len(data.split(name)) for name in ("train", "validation", "test")] == [70, 20, 30]
    images, labels = data.train.batch(torch.arange(70))
    assert images.shape == (70, 2, 5, 12)
    assert images.dtype == torch.float32
    assert labels.bincount().tolist() == [10] * 7


def test_images_are_normalised() -> None:
    for noise in (0.0, 1.0, 5.0):
        images, _ = every(Synthetic(noise=noise, classes=50), "train")
        assert abs(images.mean()) < 0.05
        assert abs(images.std() - 1) < 0.05


def test_a_linear_model_learns_it_and_the_test_split_too() -> None:
    dataset = Synthetic()
    images, labels = every(dataset, "train")
    test_images, test_labels = every(dataset, "test")
    torch.manual_seed(0)
    model = torch.nn.Linear(images[0].numel(), 10)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for start in range(0, 2048, 64):
        optimizer.zero_grad()
        cross_entropy(model(images[start : start + 64].flatten(1)), labels[start : start + 64]).backward()
        optimizer.step()
    accuracy = (model(test_images.flatten(1)).argmax(1) == test_labels).float().mean()
    assert accuracy > 0.97


def test_the_memory_does_not_grow_with_the_images_of_all_samples() -> None:
    """100,000 images of 224×224 would be 60 GB."""
    train = Synthetic(samples=100_000, height=224, width=224, classes=1000).load().train
    assert isinstance(train, NoisyPatterns)
    tensors = (train.patterns, train.pool, train.labels, train.first, train.second)
    assert sum(tensor.nbytes for tensor in tensors) < 50 * 2**20
    images, labels = train.batch(torch.tensor([0, 99_999]))
    assert images.shape == (2, 3, 224, 224)
    assert labels.max() < 1000


# ------------------------------------------------------------------ shapes


def test_sizes_of_shapes_follow_the_fields():
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
