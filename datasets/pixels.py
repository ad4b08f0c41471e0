"""Decodes image files to uint8 pixels by these rules; errors name the file and the reason.

  grey      repeated for a model with 3 channels; colour becomes grey by luma (ITU-R 601) for one with 1
  16 bits   to 8: grey by v · 255 / 65535, rounded; colour, and grey with alpha, keeps its upper 8 bits, but
            that of a PPM file is scaled
  alpha     blended with `background`, which is white or black; also if a palette's entry, a grey or a colour
            is marked as transparent
  CMYK      to RGB as (255 - C)(255 - K) / 255 without colour profiles; a JPEG file is read inverted where it
            has Adobe's marker, as such files are written
  palette   replaced by its colours
  turned    by its EXIF orientation if `upright` is set; a TIFF file, which has its own, always
  several   the first picture of an animation or a multi-page file
Floating-point, signed, 12-bit and 32-bit images are refused: the value of white is unknown, or Pillow ignores
it. So is 16-bit colour with a colour that is marked as transparent: 8 bits do not tell which pixels have it.
"""

import io
import os
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image, ImageChops, ImageOps, UnidentifiedImageError
from torch import Tensor

from .image_formats import damage, plain_jpeg

BACKGROUNDS = {"white": 255, "black": 0}
SUFFIXES = frozenset(
    (".jpg", ".jpeg", ".jpe", ".jfif", ".png", ".bmp", ".gif", ".tif", ".tiff", ".webp", ".ppm", ".pgm")
)
_ORIENTATION = 0x0112
_WHITE_16 = 65535
_PHOTOMETRIC, _WHITE_IS_ZERO = 262, 0  # a tag of TIFF files, and one of its values
_SAMPLE_FORMAT, _SIGNED = 339, 2
_EXACT = frozenset(("PNG", "TIFF", "BMP"))  # greys of 8 bits are stored without loss
_WHITE_AS_STORED = {"L;2": 3, "L;4": 15}  # grey with fewer bits, by Pillow's name
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
    """The parameters of the rules above.

    channels: 1 or 3, as the model has; background: white or black, under transparent pixels; upright: whether
    the EXIF orientation is applied. Raises ValueError for other values.
    """

    channels: int = 3
    background: str = "white"
    upright: bool = True

    def __post_init__(self) -> None:
        if self.channels not in (1, 3):
            raise ValueError(f"dataset.channels={self.channels}: must be 1 (grey) or 3 (colour)")
        if self.background not in BACKGROUNDS:
            raise ValueError(f"dataset.background={self.background}: must be {' or '.join(BACKGROUNDS)}")


@dataclass(frozen=True, kw_only=True)
class ImageHeader:
    """Width and height in pixels as stored, Pillow's mode, and names of the rules that apply (conversions).

    exact: whether grey pixels are the numbers in the file, of 8 bits, so that they can be labels.
    """

    width: int
    height: int
    mode: str
    conversions: tuple[str, ...]
    exact: bool


def header(path: str, rules: PixelRules) -> ImageHeader:
    """The header of the image at `path`; its pixels are not decoded. Raises BadImage."""
    try:
        with _opened(path, path) as image:
            return _header(image, rules)
    except _DAMAGE as error:
        raise _bad(path, error, path) from error


def decode(path: str, rules: PixelRules) -> Tensor:
    """The pixels of the image at `path`: uint8 [channels, height, width]. Raises BadImage.

    The channels of a pixel are adjacent in memory, as in most files, which makes resizing faster.
    """
    return decode_content(_content(path), path, rules)


def decode_content(content: bytes, path: str, rules: PixelRules) -> Tensor:
    """As `decode`, from the content of the file at `path`, which is not opened. Raises BadImage."""
    pixels = plain_jpeg(content, upright=rules.upright) if rules.channels == 3 else None
    if pixels is None or damage(content) is not None:  # `_inspect` says what is wrong
        return _inspect(content, path, rules)[1]
    return pixels


def inspect(path: str, rules: PixelRules) -> tuple[ImageHeader, Tensor]:
    """Header and pixels, as `header` and `decode` give them. Raises BadImage."""
    return _inspect(_content(path), path, rules)


def _content(path: str) -> bytes:
    try:
        _must_be_regular(path)
        return Path(path).read_bytes()
    except _DAMAGE as error:
        raise _bad(path, error, path) from error


def _inspect(content: bytes, path: str, rules: PixelRules) -> tuple[ImageHeader, Tensor]:
    source = io.BytesIO(content)
    try:
        with _opened(source, path) as image:
            about, problem = _header(image, rules), damage(content)
            if problem is not None:
                raise _damaged(path, problem)
            pixels = torch.from_numpy(np.array(_converted(image, rules)))
    except _DAMAGE as error:
        raise _bad(path, error, source) from error
    return about, pixels.unsqueeze(0) if pixels.dim() == 2 else pixels.permute(2, 0, 1)


def _opened(source: str | io.BytesIO, path: str) -> Image.Image:
    if source == path:
        _must_be_regular(path)
    image = Image.open(source)
    if min(image.size) < 1:
        raise ValueError(f"has no pixels ({image.width} x {image.height})")
    reason = _refusal(image)
    if reason is not None:
        image.close()
        raise BadImage(path, reason)
    return image


def _must_be_regular(path: str) -> None:
    if not stat.S_ISREG(os.stat(path).st_mode):  # reading a named pipe waits for ever
        raise BadImage(path, "no regular file")


def _header(image: Image.Image, rules: PixelRules) -> ImageHeader:
    mode = image.mode
    transparent = image.has_transparency_data
    grey = mode in ("1", "L", "LA", "La") or mode.startswith("I")
    applies = {
        "grey to colour": grey and rules.channels == 3,
        "colour to grey": not grey and rules.channels == 1,
        "16 bits to 8": _is_16_bit(image),
        "alpha over background": transparent,
        "CMYK to RGB": mode == "CMYK",
        "palette to colours": mode in ("P", "PA"),
        "turned by EXIF": (rules.upright and _is_turned(image)) or _is_turned_tiff(image),
        "first of several pictures": getattr(image, "is_animated", False),
        "other colour space to RGB": mode in ("YCbCr", "LAB", "HSV"),
    }
    names = tuple(name for name in applies if applies[name])
    exact = _keeps_numbers(image)
    return ImageHeader(width=image.width, height=image.height, mode=mode, conversions=names, exact=exact)


def _converted(image: Image.Image, rules: PixelRules) -> Image.Image:
    inverted = image.mode == "CMYK" and image.format == "JPEG" and "adobe" not in image.info
    _scale_clear_grey(image)
    if rules.upright and _is_turned(image):
        image = ImageOps.exif_transpose(image)
    if image.mode.startswith("I"):
        image = _from_16_bit(image)
    if inverted:  # Pillow reads every CMYK file as one by Adobe
        image = ImageChops.invert(image)
    if image.has_transparency_data:
        level = BACKGROUNDS[rules.background]
        canvas = Image.new("RGBA", image.size, (level, level, level, 255))
        canvas.alpha_composite(image.convert("RGBA"))
        image = canvas
    if image.mode == "LAB":  # Pillow cannot convert it to grey
        image = image.convert("RGB")
    mode = "L" if rules.channels == 1 else "RGB"
    return image if image.mode == mode else image.convert(mode)


def _from_16_bit(image: Image.Image) -> Image.Image:
    values = np.asarray(image).astype(np.int64)
    scaled = Image.fromarray(((values * 255 + _WHITE_16 // 2) // _WHITE_16).astype(np.uint8))
    if "transparency" in image.info:  # one of 65536 greys
        clear = values == image.info["transparency"]
        scaled.putalpha(Image.fromarray(np.where(clear, 0, 255).astype(np.uint8)))
    return scaled


def _is_turned(image: Image.Image) -> bool:
    # `getexif` of a PNG file without EXIF data would decode all of it.
    return "exif" in image.info and image.getexif().get(_ORIENTATION, 1) not in (0, 1)


def _is_turned_tiff(image: Image.Image) -> bool:
    """Whether Pillow turns the image: it applies the orientation of a TIFF file by itself."""
    return getattr(image, "tag_v2", {}).get(_ORIENTATION, 1) not in (0, 1)


def _bad(path: str, error: BaseException, source: str | io.BytesIO) -> BadImage:
    if isinstance(error, BadImage):
        return error
    if isinstance(error, UnidentifiedImageError):
        start = _start(source)
        return BadImage(path, f"no image (starts with {start.hex(' ')})" if start else "empty (0 bytes)")
    if isinstance(error, OSError) and error.strerror:
        return BadImage(path, error.strerror)
    words = " ".join(str(error).split()) or type(error).__name__
    return _damaged(path, words)


def _damaged(path: str, words: str) -> BadImage:
    return BadImage(path, f"damaged or cut short {Path(path).suffix.lower() or 'image'} file: {words}")


def _start(source: str | io.BytesIO) -> bytes:
    if isinstance(source, io.BytesIO):
        return source.getvalue()[:8]
    with open(source, "rb") as file:
        return file.read(8)


# Facts about the stored pixels that Pillow's mode does not give, and files that Pillow reads wrongly.


def _refusal(image: Image.Image) -> str | None:
    """Why an opened `image` cannot be used, from its header; None if it can."""
    unknown = "nothing says which value is white; save it with"
    tags, stored = getattr(image, "tag_v2", {}), _stored_as(image)
    if image.mode == "F":
        return f"floating-point pixels: {unknown} 8 bits"
    if _SIGNED in tags.get(_SAMPLE_FORMAT, ()):
        return f"signed pixels: {unknown} 8 or 16 bits without a sign"
    if image.mode == "I" and image.format not in ("PNG", "PPM"):  # there Pillow's mode I holds 16 bits
        return f"32-bit pixels: {unknown} 8 or 16 bits"
    if ";12" in stored:
        return "12-bit pixels: Pillow does not scale them; save it with 8 or 16 bits"
    if image.mode.startswith("I") and tags.get(_PHOTOMETRIC) == _WHITE_IS_ZERO:
        return "16-bit pixels of which 0 is white: Pillow does not invert them; save it with 0 for black"
    if ";16" in stored and isinstance(image.info.get("transparency"), tuple):
        return "16-bit colour of which one is transparent: save it with an alpha channel, or with 8 bits"
    return None


def _is_16_bit(image: Image.Image) -> bool:
    """Whether an opened `image` has 16 bits per channel; Pillow reads colour with 8."""
    how = _how(image)
    ppm = image.format == "PPM" and isinstance(how, tuple) and len(how) == 2 and how[1] > 255
    return image.mode.startswith("I") or ";16" in _stored_as(image) or ppm


def _keeps_numbers(image: Image.Image) -> bool:
    """Whether a grey pixel of an opened `image` is the number in its file: not scaled, inverted or lossy."""
    return image.mode == "L" and _stored_as(image) == "L" and image.format in _EXACT


def _scale_clear_grey(image: Image.Image) -> None:
    """Scale the transparent grey of a PNG file of 2 or 4 bits: Pillow scales only the pixels."""
    white = _WHITE_AS_STORED.get(_stored_as(image))
    if white is not None and "transparency" in image.info:
        image.info["transparency"] = image.info["transparency"] * 255 // white


def _stored_as(image: Image.Image) -> str:
    """Pillow's name for the stored format, such as `RGB;16B`; empty if there is none."""
    how = _how(image)
    name = how[0] if isinstance(how, tuple) and how else how
    return name if isinstance(name, str) else ""


def _how(image: Image.Image) -> Any:
    """The arguments of Pillow's decoder; None once the pixels are decoded."""
    tiles = getattr(image, "tile", ())
    return tiles[0].args if tiles else None
