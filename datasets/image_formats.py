"""Checks JPEG and PNG files by their markers, and decodes usual colour JPEGs quickly.

A decoder does not notice that a file is cut short or overwritten: libjpeg and zlib accept zeros as pixels.
But JPEG and PNG end with a mark, and the parts of a PNG have checksums; Pillow checks all of them except
those of the pixels. TIFF, BMP, WebP and the PPM family have no mark.

torchvision decodes a colour JPEG to which no rule of `pixels` applies: it uses libjpeg as Pillow does and
gives the same pixels, without Pillow's copies. Pillow decodes all other files, also damaged ones, and all
files where torchvision has no decoder (its `decode_jpeg` is deprecated since 0.29), which is only slower.

JPEG's markers: ITU-T T.81 (1992), annex B; APP segments: Exif 2.3, Adobe technical note 5116, CIPA DC-007.
PNG's parts: ISO/IEC 15948 (2004), clause 5.
"""

import os
import zlib
from collections.abc import Iterator

import torch
from PIL import Image
from torch import Tensor

_JPEG, _JPEG_END, _PNG, _PNG_END = b"\xff\xd8", b"\xff\xd9", b"\x89PNG", b"IEND"
_SCAN, _EXIF, _SEVERAL, _ADOBE = 0xDA, 0xE1, 0xE2, 0xEE
_FRAMES = (0xC0, 0xC1, 0xC2)  # baseline, extended and progressive Huffman coding; others are rare
_PNG_START, _AROUND, _PIXELS = 8, 12, b"IDAT"  # bytes before the first part, and around its content
_NO_END = "has no end mark"
_LAST = 32  # bytes in which an end mark usually is


def looks_whole(path: str) -> bool:
    """Whether a JPEG or PNG file ends with its end mark; True for other formats, which have none."""
    with open(path, "rb") as file:
        start = file.read(8)
        file.seek(max(0, os.fstat(file.fileno()).st_size - _LAST))
        end = file.read()
    if start.startswith(_JPEG):
        return _JPEG_END in end
    return not start.startswith(_PNG) or _PNG_END in end


def damage(content: bytes) -> str | None:
    """What is wrong with the content of a JPEG or PNG file, in words; None if nothing, and for other formats.

    Bytes after the end mark are ignored, as is the end mark of a thumbnail before a JPEG's first scan.
    """
    if content.startswith(_JPEG):
        whole = _JPEG_END in content[-_LAST:] or content.find(_JPEG_END, _first_scan(content)) >= 0
        return None if whole else _NO_END
    return _damage_of_png(content) if content.startswith(_PNG) else None


def plain_jpeg(content: bytes, *, upright: bool) -> Tensor | None:
    """The pixels uint8 [3, H, W], channels of a pixel adjacent in memory; None if Pillow has to decode it.

    upright: whether the EXIF orientation is applied.
    """
    if not _is_plain(content, upright):
        return None
    try:
        from torchvision.io import ImageReadMode, decode_jpeg  # takes half a second
    except ImportError:
        return None
    try:
        pixels = decode_jpeg(torch.frombuffer(bytearray(content), dtype=torch.uint8), mode=ImageReadMode.RGB)
    except RuntimeError:
        return None
    assert isinstance(pixels, Tensor)  # a list only for a list of files
    return pixels


def _damage_of_png(content: bytes) -> str | None:
    place, view = _PNG_START, memoryview(content)
    while place + _AROUND <= len(content):
        kind, end = content[place + 4 : place + 8], place + 8 + _number(content[place : place + 4])
        if kind == _PNG_END:
            return None
        checksum = content[end : end + 4]
        if kind == _PIXELS and len(checksum) == 4 and zlib.crc32(view[place + 4 : end]) != _number(checksum):
            return "the checksum of its pixels does not fit"
        place = end + 4
    return _NO_END


def _segments(content: bytes) -> Iterator[tuple[int, int, int]]:
    """The markers of a JPEG file with start and end of their segments, as far as they are valid."""
    place = len(_JPEG)
    while place + 4 <= len(content) and content[place] == 0xFF:
        if content[place + 1] == 0xFF:  # a marker may have more than one 0xFF before it
            place += 1
            continue
        end = place + 2 + _number(content[place + 2 : place + 4])
        yield content[place + 1], place, end
        place = end


def _first_scan(content: bytes) -> int:
    """The start of the first scan of a JPEG file, or the place where its markers become invalid."""
    place = len(_JPEG)
    for marker, start, end in _segments(content):
        if marker == _SCAN:
            return start
        place = end
    return place


def _is_plain(content: bytes, upright: bool) -> bool:
    """Whether the markers before the first scan are those of a colour JPEG of 8 bits, and no others."""
    framed = False
    if not content.startswith(_JPEG):
        return False
    for marker, start, _ in _segments(content):
        body = content[start + 4 : start + 20]
        if marker == _SCAN:
            return framed
        if marker == _ADOBE or (marker == _EXIF and upright) or (marker == _SEVERAL and body[:3] == b"MPF"):
            return False
        if 0xC0 <= marker <= 0xCF and marker not in (0xC4, 0xC8, 0xCC):
            framed = marker in _FRAMES and _is_usual(body)
            if not framed:
                return False
    return False


def _is_usual(frame: bytes) -> bool:
    """Whether a frame has three components of 8 bits, and a size below Pillow's limit."""
    height, width = _number(frame[1:3]), _number(frame[3:5])
    limit = Image.MAX_IMAGE_PIXELS
    return frame[0:1] == b"\x08" and frame[5:6] == b"\x03" and (limit is None or 0 < height * width <= limit)


def _number(content: bytes) -> int:
    return int.from_bytes(content, "big")
