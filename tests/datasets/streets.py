"""A small tree laid out like Cityscapes, of noise, made by the tests."""

import zlib
from pathlib import Path

import numpy as np
from pictures import put
from PIL import Image

SIDE = (16, 32)  # height, width
CITIES = {
    "train": {"aachen": 3, "bremen": 2, "ulm": 4, "zurich": 2},
    "val": {"lindau": 2, "munster": 3},
}


def image_of(root: Path, split: str, city: str, number: int) -> Path:
    return root / "leftImg8bit" / split / city / f"{city}_{number:06d}_000019_leftImg8bit.png"


def mask_of(root: Path, split: str, city: str, number: int) -> Path:
    return root / "gtFine" / split / city / f"{city}_{number:06d}_000019_gtFine_labelIds.png"


def ids(key: str, side: tuple[int, int] = SIDE) -> np.ndarray:
    """Label ids in blocks of 4 x 4 pixels: every known one may occur."""
    generator = np.random.default_rng(zlib.crc32(key.encode()))
    blocks = generator.integers(0, 34, (side[0] // 4, side[1] // 4), dtype=np.uint8)
    return blocks.repeat(4, 0).repeat(4, 1)


def pair(root: Path, split: str, city: str, number: int, side: tuple[int, int] = SIDE) -> None:
    """An image of noise and its mask, and what else lies beside a mask."""
    key = f"{split}/{city}/{number}"
    noise = np.random.default_rng(zlib.crc32(key.encode()) + 1).integers(0, 256, (*side, 3), dtype=np.uint8)
    put(image_of(root, split, city, number), Image.fromarray(noise))
    mask = put(mask_of(root, split, city, number), Image.fromarray(ids(key, side)))
    put(mask.with_name(mask.name.replace("labelIds", "instanceIds")), Image.new("I;16", (side[1], side[0])))
    mask.with_name(mask.name.replace("labelIds.png", "polygons.json")).write_text("{}")


def streets(root: Path, cities: dict[str, dict[str, int]] | None = None) -> Path:
    """The tree: by split and city, so many images."""
    for split, counts in (cities or CITIES).items():
        for city, count in counts.items():
            for number in range(count):
                pair(root, split, city, number)
    return root
