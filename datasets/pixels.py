"""Decodes image files to uint8 pixels by these rules; errors name the file and the reason.

  grey      repeated for a model with 3 channels; colour becomes grey by luma (ITU-R 601) for one with 1
  16 bits   to 8: grey by v · 255 / 65535, rounded; colour as Pillow reads it
  alpha     blended with white; also if a palette's entry, a grey or a colour is marked as transparent
  turned    by its EXIF orientation if `upright` is set; a TIFF file, which has its own, always
  several   the first picture of an animation or a multi-page file
Floating-point and 32-bit images are refused: nothing says which value is white.

A decoder does not notice that a file is overwritten with zeros: libjpeg and zlib accept them as pixels. So
JPEG and PNG files must have their end mark, and the pixels of a PNG file their checksum.
"""

import io
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from PIL import Image, ImageOps, UnidentifiedImageError
from torch import Tensor

SUFFIXES = frozenset(
    (".jpg", ".jpeg", ".jpe", ".jfif", ".png", ".bmp", ".gif", ".tif", ".tiff", ".webp", ".ppm", ".pgm")
)
_ORIENTATION = 0x0112
_WHITE_16 = 65535
# Marks of JPEG files (ITU-T T.81, annex B) and PNG files (ISO/IEC 15948, clause 5).
_JPEG, _JPEG_SCAN, _JPEG_END, _PNG, _PNG_END = b"\xff\xd8", b"\xff\xda", b"\xff\xd9", b"\x89PNG", b"IEND"
_LAST = 32  # bytes in which an end mark usually is
# Errors of Pillow for bytes that are no image, or a damaged one.
_DAMAGE = (
    OSError,
    ValueError,
    SyntaxError,
    EOFError,
    Image.DecompressionBombError,
    Image.DecompressionBombWarning,
)


class BadImage(ValueError):
    """An image file that cannot be used: `path` and, in words, `reason`."""

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(path, reason)  # both are arguments, so that it survives a pickle
        self.path, self.reason = path, reason

    def __str__(self) -> str:
        return f"{self.path}: {self.reason}"


@dataclass(frozen=True, kw_only=True)
class PixelRules:
    """channels: 1 or 3, as the model has; upright: whether the EXIF orientation is applied.

    Raises ValueError for another number of channels.
    """

    channels: int = 3
    upright: bool = True

    def __post_init__(self) -> None:
        if self.channels not in (1, 3):
            raise ValueError(f"dataset.channels={self.channels}: must be 1 (grey) or 3 (colour)")


def size_of(path: str, *, labels: bool = False) -> tuple[int, int]:
    """Width and height in the header of the image at `path`; its pixels are not decoded. Raises BadImage.

    labels: refuse a file whose grey pixels are not its numbers of 8 bits, see `decode_labels`.
    """
    _must_be_regular(path)
    with _image(path, path) as image:
        if labels:
            _must_hold_labels(image, path)
        return image.size


def decode(path: str, rules: PixelRules) -> Tensor:
    """The pixels of the image at `path`: uint8 [channels, height, width]. Raises BadImage.

    The channels of a pixel are adjacent in memory, as in most files, which makes resizing faster.
    """
    return decode_content(_content(path), path, rules)


def decode_content(content: bytes, path: str, rules: PixelRules) -> Tensor:
    """As `decode`, from the content of the file at `path`, which is not opened. Raises BadImage."""
    with _image(io.BytesIO(content), path) as image:
        _must_be_whole(content, path)
        quick = _usual_jpeg(content, image, rules)
        if quick is not None:
            return quick
        pixels = torch.from_numpy(np.array(_converted(image, rules)))
    return pixels.unsqueeze(0) if pixels.dim() == 2 else pixels.permute(2, 0, 1)


def decode_labels(path: str) -> Tensor:
    """The numbers uint8 [height, width] in the PNG file at `path`, of grey with 8 bits. Raises BadImage."""
    content = _content(path)
    with _image(io.BytesIO(content), path) as image:
        _must_hold_labels(image, path)
        _must_be_whole(content, path)
        return torch.from_numpy(np.array(image))


def _content(path: str) -> bytes:
    try:
        _must_be_regular(path)
        return Path(path).read_bytes()
    except OSError as error:
        raise _bad(path, error, path) from error


@contextmanager
def _image(source: str | io.BytesIO, path: str) -> Iterator[Image.Image]:
    """The opened image; errors, of its use too, become BadImage."""
    try:
        with Image.open(source) as image:
            if min(image.size) < 1:
                raise ValueError(f"has no pixels ({image.width} x {image.height})")
            # Pillow's mode I holds 16 bits for PNG and PPM files, 32 for others.
            if image.mode == "F" or (image.mode == "I" and image.format not in ("PNG", "PPM")):
                reason = "32-bit pixels: nothing says which value is white; save it with 8 or 16 bits"
                raise BadImage(path, reason)
            yield image
    except _DAMAGE as error:
        raise _bad(path, error, source) from error


def _must_be_regular(path: str) -> None:
    if not os.path.isfile(path) and os.path.exists(path):  # reading a named pipe waits for ever
        raise BadImage(path, "no regular file")


def _must_hold_labels(image: Image.Image, path: str) -> None:
    """Refuse an opened `image` whose grey pixels Pillow would scale or blend, or that are lossy."""
    tiles = getattr(image, "tile", ())
    stored = tiles[0].args if tiles else None  # such as L, or L;4 for 4 bits
    if (image.format, image.mode, stored) != ("PNG", "L", "L") or image.has_transparency_data:
        kind = f"{image.format} of mode {image.mode} ({stored})"
        raise BadImage(path, f"{kind}: must hold one label id a pixel, as a PNG file of 8 bits (grey)")


def _usual_jpeg(content: bytes, image: Image.Image, rules: PixelRules) -> Tensor | None:
    """The pixels of a colour JPEG file that no rule changes, by torchvision; None: Pillow has to decode it.

    It uses libjpeg as Pillow does and gives the same pixels, without Pillow's copies (a fifth of the time).
    """
    plain = (image.format, image.mode) == ("JPEG", "RGB") and "adobe" not in image.info
    if not plain or rules.channels == 1 or _is_turned(image, rules):
        return None
    try:
        from torchvision.io import ImageReadMode, decode_jpeg  # deprecated since 0.29; takes half a second

        pixels = decode_jpeg(torch.frombuffer(bytearray(content), dtype=torch.uint8), mode=ImageReadMode.RGB)
    except (ImportError, RuntimeError):
        return None
    assert isinstance(pixels, Tensor)  # a list only for a list of files
    return pixels


def _is_turned(image: Image.Image, rules: PixelRules) -> bool:
    # `getexif` alone would also read an orientation from XMP data.
    return rules.upright and "exif" in image.info and image.getexif().get(_ORIENTATION, 1) not in (0, 1)


def _converted(image: Image.Image, rules: PixelRules) -> Image.Image:
    if _is_turned(image, rules):
        image = ImageOps.exif_transpose(image)
    if image.mode.startswith("I"):
        values = np.asarray(image).astype(np.int64)
        image = Image.fromarray(((values * 255 + _WHITE_16 // 2) // _WHITE_16).astype(np.uint8))
    if image.has_transparency_data:
        canvas = Image.new("RGBA", image.size, (255, 255, 255, 255))
        canvas.alpha_composite(image.convert("RGBA"))
        image = canvas
    mode = "L" if rules.channels == 1 else "RGB"
    return image if image.mode == mode else image.convert(mode)


def _bad(path: str, error: BaseException, source: str | io.BytesIO) -> BadImage:
    if isinstance(error, BadImage):
        return error
    if isinstance(error, UnidentifiedImageError):
        start = source.getvalue()[:8] if isinstance(source, io.BytesIO) else Path(source).read_bytes()[:8]
        return BadImage(path, f"no image (starts with {start.hex(' ')})" if start else "empty (0 bytes)")
    if isinstance(error, OSError) and error.strerror:
        return BadImage(path, error.strerror)
    words = " ".join(str(error).split()) or type(error).__name__
    return _damaged(path, words)


def _damaged(path: str, words: str) -> BadImage:
    return BadImage(path, f"damaged or cut short {Path(path).suffix.lower() or 'image'} file: {words}")


# ------------------------------------------------------------------ whole files


def looks_whole(path: str) -> bool:
    """Whether a JPEG or PNG file ends with its end mark; True for other formats, which have none."""
    with open(path, "rb") as file:
        start = file.read(8)
        file.seek(max(0, os.fstat(file.fileno()).st_size - _LAST))
        end = file.read()
    if start.startswith(_JPEG):
        return _JPEG_END in end
    return not start.startswith(_PNG) or _PNG_END in end


def _must_be_whole(content: bytes, path: str) -> None:
    """Raises BadImage or an error of Pillow for a JPEG file without end mark and a damaged PNG file.

    The end mark of a JPEG file must follow the last scan: a thumbnail before the scans has one of its own.
    """
    if content.startswith(_JPEG):
        if _JPEG_END not in content[-_LAST:] and content.rfind(_JPEG_END) < content.rfind(_JPEG_SCAN):
            raise _damaged(path, "has no end mark")
    elif content.startswith(_PNG):
        with Image.open(io.BytesIO(content)) as image:
            image.verify()  # compares the checksums of all parts
