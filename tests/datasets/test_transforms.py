"""What becomes of decoded pixels: sizes, the centre, mean and standard deviation."""

import pytest
import torch

from daso_bench.datasets.transforms import centre_crop, check_normalisation, normalise


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


@pytest.mark.parametrize(
    ("mean", "std", "message"),
    [
        ((0.1,), (1, 1), r"dataset.mean=\[0.1\]: must be a finite number for each of 2 channels"),
        ((0, 0), (0, 1), r"dataset.std=\[0, 1\]: must be a finite number above 0"),
        ((0, 0), (1e-60, 1), r"dataset.std=\[1e-60, 1\]: must be a finite number above 0"),
        ((1, float("nan")), (1, 1), r"dataset.mean=\[1, nan\]: must be a finite number"),
        ((0, 0), (1, 1e60), r"dataset.std=\[1, 1e\+60\]: must be a finite number"),
    ],
    ids=["too few", "zero", "vanishing", "nan", "too large"],
)
def test_bad_values_are_refused(mean: tuple[float, ...], std: tuple[float, ...], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        check_normalisation(mean, std, 2)
