"""Small image folders made by the tests, and the splits in memory of a data set."""

import struct
import zlib
from pathlib import Path

import numpy as np
from PIL import Image

from daso_bench.datasets.data import SPLITS, Data, Split

PNG_GREY = 0
CLASSES = ["0", "180", "270", "90"]


def stored(data: Data) -> list[Split]:
    """Train, validation and test, which lie in memory."""
    splits = [split for name in SPLITS if isinstance(split := data.split(name), Split)]
    assert len(splits) == len(SPLITS)
    return splits


def plain(level: int, side: int = 24) -> Image.Image:
    """A picture of one grey level."""
    return Image.new("RGB", (side, side), (level, level, level))


def put(path: Path, image: Image.Image, **options: object) -> Path:
    """Save `image` at `path`, folders included."""
    path.parent.mkdir(parents=True, exist_ok=True)
    image.save(path, **options)  # pyright: ignore[reportArgumentType] (options of Pillow's writers)
    return path


def cats_and_dogs(root: Path, each: int = 12) -> Path:
    """Two classes of `each` images of 8 x 8 pixels, each of one grey level."""
    for level, name in ((30, "cats"), (200, "dogs")):
        for n in range(each):
            put(root / name / f"{n}.png", plain(level + n % 12, side=8))
    return root


def noise(height: int = 60, width: int = 80) -> Image.Image:
    """A colour picture of which no two pixels are alike."""
    drawn = np.random.default_rng(0).normal(128, 40, (height, width, 3))
    return Image.fromarray(drawn.clip(0, 255).astype(np.uint8))


def ramp() -> Image.Image:
    """16-bit grey from black to white."""
    return Image.fromarray(np.linspace(0, 65535, 576).astype("uint16").reshape(24, 24))


def field_images(root: Path) -> Path:
    """45 files: four classes, one of them not in val/; every mode; cut, empty and hidden files."""
    for k, name in enumerate(CLASSES):
        for n in range(8):
            put(root / "train" / name / f"{n}.jpg", plain(40 * k + n))
        if name != "180":
            for n in range(2):
                put(root / "val" / name / f"{n}.jpg", plain(40 * k + n))
    put(root / "train" / "0" / "grey.png", Image.new("L", (24, 24), 90))
    put(root / "train" / "0" / "alpha.png", Image.new("RGBA", (24, 24), (9, 9, 9, 0)))
    put(root / "train" / "0" / "print.jpg", Image.new("CMYK", (24, 24)))
    put(root / "train" / "0" / "deep.png", ramp())
    cut = (root / "train" / "90" / "0.jpg").read_bytes()
    (root / "train" / "90" / "cut.jpg").write_bytes(cut[: len(cut) // 2])
    (root / "train" / "90" / "empty.png").touch()
    (root / "train" / "90" / "._0.jpg").write_bytes(b"\0\5\x16\7")
    (root / "train" / ".ipynb_checkpoints").mkdir()
    return root


def png(bits: int, kind: int, row: bytes, *, width: int = 1) -> bytes:
    """A PNG file of one row, which Pillow cannot write with fewer than 8 bits per channel."""

    def chunk(kind: bytes, content: bytes) -> bytes:
        checksum = struct.pack(">I", zlib.crc32(kind + content))
        return struct.pack(">I", len(content)) + kind + content + checksum

    size = struct.pack(">IIBBBBB", width, 1, bits, kind, 0, 0, 0)
    pixels = chunk(b"IDAT", zlib.compress(b"\0" + row))
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", size) + pixels + chunk(b"IEND", b"")
