"""How an image file holds its pixels, where Pillow's mode does not say it; what Pillow would read wrongly."""

from typing import Any

from PIL import Image

_PHOTOMETRIC, _WHITE_IS_ZERO = 262, 0  # a tag of TIFF files, and one of its values
_SAMPLE_FORMAT, _SIGNED = 339, 2
_EXACT = frozenset(("PNG", "TIFF", "BMP"))  # whose greys of 8 bits come out as they went in
_WHITE_AS_STORED = {"L;2": 3, "L;4": 15}  # of grey with fewer bits, by Pillow's name for it


def refusal(image: Image.Image) -> str | None:
    """Why an opened `image` cannot be used, whatever its pixels; None where it can."""
    unknown = "nothing says which value is white; save it with"
    tags, stored = getattr(image, "tag_v2", {}), _stored_as(image)
    if image.mode == "F":
        return f"floating-point pixels: {unknown} 8 bits"
    if _SIGNED in tags.get(_SAMPLE_FORMAT, ()):
        return f"signed pixels: {unknown} 8 or 16 bits without a sign"
    if image.mode == "I" and image.format not in ("PNG", "PPM"):  # of which Pillow makes 16 bits
        return f"32-bit pixels: {unknown} 8 or 16 bits"
    if ";12" in stored:
        return "12-bit pixels: Pillow does not scale them; save it with 8 or 16 bits"
    if image.mode.startswith("I") and tags.get(_PHOTOMETRIC) == _WHITE_IS_ZERO:
        return "16-bit pixels of which 0 is white: Pillow does not invert them; save it with 0 for black"
    if ";16" in stored and isinstance(image.info.get("transparency"), tuple):
        return "16-bit colour of which one is transparent: save it with an alpha channel, or with 8 bits"
    return None


def is_16_bit(image: Image.Image) -> bool:
    """Whether an opened `image` has 16 bits a channel; of colour Pillow keeps or makes 8."""
    how = _how(image)
    ppm = image.format == "PPM" and isinstance(how, tuple) and len(how) == 2 and how[1] > 255
    return image.mode.startswith("I") or ";16" in _stored_as(image) or ppm


def keeps_numbers(image: Image.Image) -> bool:
    """Whether a grey pixel of an opened `image` is the number in its file: not scaled, inverted or lossy."""
    return image.mode == "L" and _stored_as(image) == "L" and image.format in _EXACT


def scale_clear_grey(image: Image.Image) -> None:
    """Of an opened PNG file of 2 or 4 bits Pillow scales the pixels, but not the transparent grey: do so."""
    white = _WHITE_AS_STORED.get(_stored_as(image))
    if white is not None and "transparency" in image.info:
        image.info["transparency"] = image.info["transparency"] * 255 // white


def _stored_as(image: Image.Image) -> str:
    """Pillow's name for how the file holds pixels, such as `RGB;16B`; empty where it tells none."""
    how = _how(image)
    name = how[0] if isinstance(how, tuple) and how else how
    return name if isinstance(name, str) else ""


def _how(image: Image.Image) -> Any:
    """What Pillow tells its decoder; nothing once the pixels are decoded."""
    tiles = getattr(image, "tile", ())
    return tiles[0].args if tiles else None
