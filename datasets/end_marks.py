"""Whether an image file is whole: JPEG and PNG close with a mark, and a PNG's parts have checksums.

A decoder does not say so: to libjpeg and zlib zeros are pixels as good as any. JPEG's markers: ITU-T T.81
(1992), annex B; PNG's parts: ISO/IEC 15948 (2004), clause 5. TIFF, BMP, WebP and the PPM family have no mark.
"""

import os
import zlib

_JPEG, _PNG = b"\xff\xd8", b"\x89PNG"
_JPEG_END, _PNG_END = b"\xff\xd9", b"IEND"
_SCAN = 0xDA
_PNG_START, _AROUND, _PIXELS = 8, 12, b"IDAT"  # bytes before the first part, and around what one holds
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
    """What the content of a JPEG or PNG file lacks, in words; None where nothing, and for other formats.

    What follows the end mark does not count, nor does that of a small picture before a JPEG's first scan.
    """
    if content.startswith(_JPEG):
        whole = _JPEG_END in content[-_LAST:] or content.find(_JPEG_END, _first_scan(content)) >= 0
        return None if whole else _NO_END
    return _damage_of_png(content) if content.startswith(_PNG) else None


def _damage_of_png(content: bytes) -> str | None:
    """Pillow looks at the checksums of all parts but those that hold the pixels."""
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


def _first_scan(content: bytes) -> int:
    """Where the first scan of a JPEG file begins, or its markers are no longer to be followed."""
    place = len(_JPEG)
    while place + 4 <= len(content) and content[place] == 0xFF and content[place + 1] != _SCAN:
        filled = content[place + 1] == 0xFF  # a marker may have more than one 0xFF before it
        place += 1 if filled else 2 + _number(content[place + 2 : place + 4])
    return place


def _number(content: bytes) -> int:
    return int.from_bytes(content, "big")
