"""The usual photograph, quickly: a colour JPEG to which no rule of `pixels` applies.

Its few markers are looked at here and torchvision decodes it, which is libjpeg as Pillow is and gives the
same pixels, without Pillow's copies. All else, damaged files too, is left to Pillow; and everything where
torchvision no longer decodes (its `decode_jpeg` is deprecated since 0.29): that is slower, and nothing else.
Markers: ITU-T T.81 (1992), annex B; what APP segments hold: Exif 2.3, Adobe technical note 5116, CIPA DC-007.
"""

import torch
from PIL import Image
from torch import Tensor

_START, _SCAN, _EXIF, _SEVERAL, _ADOBE = b"\xff\xd8\xff", 0xDA, 0xE1, 0xE2, 0xEE
_FRAMES = (0xC0, 0xC1, 0xC2)  # baseline, extended and progressive Huffman coding; others are rare


def plain_jpeg(content: bytes, *, upright: bool) -> Tensor | None:
    """The pixels uint8 [3, H, W], channels side by side in memory; None where Pillow has to look.

    upright: whether the EXIF orientation counts.
    """
    if not _is_plain(content, upright):
        return None
    try:
        from torchvision.io import ImageReadMode, decode_jpeg  # half a second, and most data sets need none
    except ImportError:
        return None
    try:
        found = decode_jpeg(torch.frombuffer(bytearray(content), dtype=torch.uint8), mode=ImageReadMode.RGB)
    except RuntimeError:
        return None
    return found if isinstance(found, Tensor) else None  # by its types it could be a list, of a list of files


def _is_plain(content: bytes, upright: bool) -> bool:
    """Whether the markers before the first scan are those of a colour JPEG of 8 bits, and no others."""
    place, framed = 2, False
    if not content.startswith(_START):
        return False
    while place + 4 <= len(content) and content[place] == 0xFF:
        marker, size = content[place + 1], int.from_bytes(content[place + 2 : place + 4], "big")
        body = content[place + 4 : place + 20]
        if marker == _SCAN:
            return framed
        if marker == _ADOBE or (marker == _EXIF and upright) or (marker == _SEVERAL and body[:3] == b"MPF"):
            return False
        if 0xC0 <= marker <= 0xCF and marker not in (0xC4, 0xC8, 0xCC):
            framed = marker in _FRAMES and _is_usual(body)
            if not framed:
                return False
        place += 2 + size
    return False


def _is_usual(frame: bytes) -> bool:
    """Whether a frame's header says three components of 8 bits, and a size that Pillow does not warn of."""
    height, width = int.from_bytes(frame[1:3], "big"), int.from_bytes(frame[3:5], "big")
    limit = Image.MAX_IMAGE_PIXELS
    return frame[0:1] == b"\x08" and frame[5:6] == b"\x03" and (limit is None or 0 < height * width <= limit)
