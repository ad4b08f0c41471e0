"""What becomes of decoded pixels; random changes are the same for one (seed, epoch, sample), in any order."""

import dataclasses
import pickle
from pathlib import Path

import pytest
import torch
from pictures import noise, put

from daso_bench.datasets.data import Split, training_batch
from daso_bench.datasets.imagefolder import ImageFolder
from daso_bench.datasets.transforms import RECIPES, centre_crop, epoch_key, normalise, recipe

SIDE = (16, 12)


def a_split(name: str, samples: int = 24) -> Split:
    generator = torch.Generator().manual_seed(3)
    images = torch.randint(256, (samples, 3, *SIDE), generator=generator, dtype=torch.uint8)
    return Split(
        images=images,
        labels=torch.arange(samples),
        mean=(100.0,) * 3,
        std=(50.0,) * 3,
        augment=recipe(name, SIDE),
    )


@pytest.mark.parametrize("name", RECIPES)
def test_pixels_depend_on_the_sample_alone_and_torchs_generator_is_left_where_it_was(name: str) -> None:
    split, key = a_split(name), epoch_key(5, 2)
    whole, labels = split.augmented(torch.arange(24), key)
    order = torch.randperm(24, generator=torch.Generator().manual_seed(1))
    torch.manual_seed(11)
    expected = torch.rand(3)
    torch.manual_seed(11)
    pieces = [split.augmented(piece, key) for piece in order.split([5, 0, 12, 7])]
    assert torch.equal(torch.rand(3), expected)
    assert torch.equal(torch.cat([images for images, _ in pieces]), whole[order])
    assert torch.equal(torch.cat([labels for _, labels in pieces]), labels[order])


@pytest.mark.parametrize("name", [name for name in RECIPES if name != "none"])
def test_epochs_seeds_and_samples_are_changed_in_different_ways(name: str) -> None:
    split, keys = a_split(name), [epoch_key(5, 0), epoch_key(5, 1), epoch_key(6, 0)]
    images = [split.augmented(torch.arange(24), key)[0] for key in keys]
    assert not torch.equal(images[0], images[1])
    assert not torch.equal(images[0], images[2])
    same = dataclasses.replace(split, images=split.images[:1].expand(24, -1, -1, -1).clone())
    changed, _ = same.augmented(torch.arange(24), 9)
    assert len({image.numpy().tobytes() for image in changed}) > 1


def test_half_of_the_images_are_flipped() -> None:
    split = a_split("flip", samples=400)
    plain, changed = split.batch(torch.arange(400))[0], split.augmented(torch.arange(400), 1)[0]
    flipped = (changed == plain.flip(-1)).flatten(1).all(1)
    kept = (changed == plain).flatten(1).all(1)
    assert bool((flipped ^ kept).all())
    assert 160 <= int(flipped.sum()) <= 240


def test_a_crop_has_a_black_border_of_at_most_four_pixels() -> None:
    ones = Split(
        images=torch.full((200, 1, *SIDE), 255, dtype=torch.uint8),
        labels=torch.arange(200),
        mean=(0.0,),
        std=(1.0,),
        augment=recipe("crop_flip", SIDE),
    )
    images, _ = ones.augmented(torch.arange(200), 1)
    rows, columns = (images > 0).any(-1).sum((1, 2)), (images > 0).any(-2).sum((1, 2))
    assert (int(rows.min()), int(rows.max())) == (12, 16)
    assert (int(columns.min()), int(columns.max())) == (8, 12)
    assert (images > 0).sum((1, 2, 3)).equal(rows * columns), "what is left of the image is one block"


@pytest.mark.parametrize("name", RECIPES)
def test_images_on_disk_are_changed_for_training_alone_also_by_a_workers_copy(
    name: str, tmp_path: Path
) -> None:
    for number in range(12):
        put(tmp_path / "train" / "ab"[number % 2] / f"{number}.png", noise(20, 30))
    dataset = ImageFolder(root=str(tmp_path), resize=18, crop=16, augment=name)
    dataset.prepare()
    data, indices = dataset.load(), torch.arange(8)
    images, _ = training_batch(data.train, indices, 1)
    again, _ = training_batch(pickle.loads(pickle.dumps(data.train)), indices.flip(0), 1)
    assert images.shape == (8, 3, 16, 16)
    assert torch.equal(again.flip(0), images)
    assert torch.equal(images, data.train.batch(indices)[0]) is (name == "none")
    assert torch.equal(training_batch(data.test, indices[:1], 1)[0], data.test.batch(indices[:1])[0])


# ------------------------------------------------------------------ sizes, mean and standard deviation


@pytest.mark.parametrize(("height", "width"), [(8, 8), (30, 50), (50, 30), (3, 200), (1, 1)])
def test_any_size_becomes_one_size(height: int, width: int) -> None:
    image = torch.full((3, height, width), 77, dtype=torch.uint8)
    made = centre_crop(image, resize=10, crop=8)
    assert (made.shape, made.dtype) == ((3, 8, 8), torch.uint8)
    assert (made == 77).all()


def test_the_centre_is_kept() -> None:
    image = torch.zeros(1, 4, 12, dtype=torch.uint8)
    image[:, :, 4:8] = 200
    assert (centre_crop(image, resize=4, crop=4) == 200).all()


def test_it_is_smoothed_before_it_is_made_smaller() -> None:
    stripes = ((torch.arange(64) % 4 == 0) * 255).to(torch.uint8).expand(1, 64, 64)
    small = centre_crop(stripes.contiguous(), resize=16, crop=16).double()
    assert abs(small.mean() - 255 / 4) < 4  # without antialiasing every stripe would be missed


def test_normalised_by_hand() -> None:
    images = torch.tensor([0, 255, 51], dtype=torch.uint8).view(1, 3, 1, 1)
    made = normalise(images, mean=(0.5, 0.5, 0.1), std=(0.25, 0.5, 0.2))
    assert made.flatten().tolist() == pytest.approx([-2, 1, 0.5])
    assert images.flatten().tolist() == [0, 255, 51]
