"""What becomes of decoded pixels: sizes, the centre, mean and standard deviation."""

import pytest
import torch

from daso_bench.datasets.transforms import CentreCrop, Normalise


@pytest.mark.parametrize(("height", "width"), [(8, 8), (30, 50), (50, 30), (3, 200), (1, 1)])
def test_any_size_becomes_one_size(height: int, width: int) -> None:
    image = torch.full((3, height, width), 77, dtype=torch.uint8)
    made = CentreCrop(resize=10, crop=8)(image)
    assert (made.shape, made.dtype) == ((3, 8, 8), torch.uint8)
    assert (made == 77).all()


def test_the_centre_is_kept() -> None:
    image = torch.zeros(1, 4, 12, dtype=torch.uint8)
    image[:, :, 4:8] = 200
    assert (CentreCrop(resize=4, crop=4)(image) == 200).all()


def test_it_is_smoothed_before_it_is_made_smaller() -> None:
    stripes = ((torch.arange(64) % 4 == 0) * 255).to(torch.uint8).expand(1, 64, 64)
    small = CentreCrop(resize=16, crop=16)(stripes.contiguous()).double()
    assert abs(small.mean() - 255 / 4) < 4  # without antialiasing every stripe would be missed


def test_normalised_by_hand() -> None:
    images = torch.tensor([0, 255, 51], dtype=torch.uint8).view(1, 3, 1, 1)
    made = Normalise(mean=(0.5, 0.5, 0.1), std=(0.25, 0.5, 0.2), channels=3)(images)
    assert made.flatten().tolist() == pytest.approx([-2, 1, 0.5])
    assert images.flatten().tolist() == [0, 255, 51]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: CentreCrop(resize=8, crop=9), "dataset.resize=8: must be >= dataset.crop=9"),
        (lambda: CentreCrop(resize=8, crop=0), "dataset.crop=0: must be >= 1"),
        (
            lambda: Normalise(mean=(0.1,), std=(1, 1, 1), channels=3),
            r"dataset.mean=\[0.1\]: must be 3 numbers",
        ),
        (lambda: Normalise(mean=(0,), std=(0,), channels=1), r"dataset.std=\[0\]: must be > 0"),
        (lambda: Normalise(mean=(0,), std=(1e-60,), channels=1), r"dataset.std=\[1e-60\]: must be > 0"),
        *(
            (
                lambda value=value: Normalise(mean=(1, value), std=(1, 1), channels=2),
                r"dataset.mean=\[1, .*\]: must be finite",
            )
            for value in (float("nan"), float("inf"), -float("inf"), 1e60)
        ),
        (
            lambda: Normalise(mean=(0, 0), std=(1, float("nan")), channels=2),
            r"dataset.std=\[1, nan\]: must be finite",
        ),
        (lambda: Normalise(mean=(0,), std=(float("inf"),), channels=1), "dataset.std=.*must be finite"),
    ],
)
def test_bad_values_are_refused(make: type, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()
