"""Reader for the IDX format of MNIST-like data sets (Y. LeCun, C. Cortes, C. Burges, The MNIST database)."""

import gzip
import math
import zlib
from pathlib import Path

import numpy as np

from .bad_file import BadFile

UNSIGNED_BYTE = 0x08


def content_of(path: Path) -> bytes:
    """What is in a file; a name that ends in .gz is decompressed. Raises BadFile, OSError."""
    try:
        return gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise BadFile(f"{path}: damaged or cut short ({error}); delete it and get it again") from error


def read_idx(path: Path, content: bytes) -> np.ndarray:
    """The uint8 array in `content`, that of the IDX file at `path`.

    Header, big-endian: two zero bytes, the type code, the number of axes, then each axis' length in 4 bytes.
    Raises BadFile naming one that is damaged, cut short or too long.
    """
    if len(content) < 4 or content[:3] != bytes([0, 0, UNSIGNED_BYTE]):
        raise BadFile(f"{path}: no IDX file of unsigned bytes (starts with {content[:4].hex(' ')})")
    axes = content[3]
    header = 4 + 4 * axes
    if len(content) < header:
        raise BadFile(f"{path}: cut short in its header; delete it and get it again")
    shape = np.frombuffer(content[4:header], dtype=">u4").tolist()
    expected = header + math.prod(shape)
    if len(content) != expected:
        raise BadFile(
            f"{path}: {len(content)} bytes where {expected} belong to {shape}; delete it and get it again"
        )
    return np.frombuffer(content, dtype=np.uint8, offset=header).reshape(shape).copy()
