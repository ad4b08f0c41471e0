"""Keys of data sets that are refused, each with its value and what is allowed."""

import math
from collections.abc import Callable
from typing import Any

import pytest

from daso_bench.datasets.cityscapes import Cityscapes
from daso_bench.datasets.imagefolder import ImageFolder
from daso_bench.datasets.pixels import PixelRules
from daso_bench.datasets.shapes import Shapes
from daso_bench.datasets.synthetic import Synthetic
from daso_bench.datasets.transforms import PAIR_RECIPES, check_normalisation, pair_recipe, recipe


def images(**keys: Any) -> ImageFolder:
    return ImageFolder(**{"root": "imgs", "resize": 8, "crop": 8, **keys})


def normalisation(mean: tuple[float, ...] = (0, 0), std: tuple[float, ...] = (1, 1)) -> None:
    check_normalisation(mean, std, 2)


@pytest.mark.parametrize(
    ("make", "keys", "message"),
    [
        (Synthetic, {"samples": 0}, r"samples=0: must be >= 1$"),
        (Synthetic, {"test_samples": -1}, r"test_samples=-1: must be >= 1$"),
        (Synthetic, {"classes": 1}, r"classes=1: must be >= 2$"),
        (Synthetic, {"noise": math.nan}, r"noise=nan: must be >= 0$"),
        (Shapes, {"test_samples": 0}, r"test_samples=0: must be >= 1$"),
        (Shapes, {"height": 15}, r"height=15: must be >= 16$"),
        (Shapes, {"noise": math.nan}, r"noise=nan: must be >= 0$"),
        (Shapes, {"noise": math.inf}, r"noise=inf: must be finite$"),
        (
            Shapes,
            {"augment": "scale_crop_flip_jitter"},
            "augment=scale_crop_flip_jitter: must be one of ",
        ),
        (images, {"check": "full"}, "check=full: unknown; must be one of headers, decode, none"),
        (images, {"bad_files": "ignore"}, "bad_files=ignore: unknown; must be one of stop, skip"),
        (images, {"holdout": 0.5}, r"holdout=0\.5: must be above 0 and below 0\.5"),
        (images, {"channels": 1}, r"mean=.*: must be a finite number .* \(ImageNet in grey: "),
        (images, {"crop": 9}, r"resize=8: must be >= dataset\.crop=9"),
        (images, {"crop": 0}, "crop=0: must be >= 1"),
        (Cityscapes, {"height": 0}, r"height=0: must be >= 1$"),
        (Cityscapes, {"mean": (0.5,)}, r"mean=\[0\.5\]: must be a finite number for each of 3 .* 0 to 1$"),
        (PixelRules, {"channels": 2}, r"channels=2: must be 1 \(grey\) or 3"),
        (
            recipe,
            {"name": "rotate", "side": (4, 4)},
            "augment=rotate: must be one of none, flip, crop_",
        ),
        (
            pair_recipe,  # of images with masks
            {"name": "crop_flip", "side": (4, 4), "fill": (7, 8, 9), "allowed": PAIR_RECIPES},
            "augment=crop_flip: must be one of none, flip, scale_crop",
        ),
        (normalisation, {"mean": (0.1,)}, r"mean=\[0.1\]: must be a finite number for each of 2 channels"),
        (normalisation, {"mean": (1, math.nan)}, r"mean=\[1, nan\]: must be a finite number"),
        (normalisation, {"std": (0, 1)}, r"std=\[0, 1\]: must be a finite number above 0"),
        (normalisation, {"std": (1e-60, 1)}, r"std=\[1e-60, 1\]: must be a finite number above 0"),
        (normalisation, {"std": (1, 1e60)}, r"std=\[1, 1e\+60\]: must be a finite number"),
    ],
)
def test_a_key_is_refused(make: Callable[..., Any], keys: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=rf"^dataset\.{message}"):
        make(**keys)
