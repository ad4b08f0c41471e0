"""The IDX reader, and the sentence for each way in which a file can be wrong."""

import gzip
from pathlib import Path

import numpy as np
import pytest

from daso_bench.datasets.bad_file import BadFile
from daso_bench.datasets.idx import content_of, read_idx

ARRAY = np.arange(12, dtype=np.uint8).reshape(3, 2, 2)


def idx_bytes(array: np.ndarray) -> bytes:
    lengths = np.array(array.shape, dtype=">u4").tobytes()
    return bytes([0, 0, 8, array.ndim]) + lengths + array.tobytes()


def test_plain_and_compressed_files_are_read(tmp_path: Path) -> None:
    plain, compressed = tmp_path / "images-ubyte", tmp_path / "images-ubyte.gz"
    plain.write_bytes(idx_bytes(ARRAY))
    compressed.write_bytes(gzip.compress(idx_bytes(ARRAY)))
    for path in (plain, compressed):
        read = read_idx(path, content_of(path))
        np.testing.assert_array_equal(read, ARRAY)
        assert read.dtype == np.uint8
        assert read.flags.writeable  # torch.from_numpy warns about arrays that are not


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "no IDX file"),
        (b"\x00\x00\x0d\x01\x00\x00\x00\x00", "no IDX file"),
        (b"<html>not found</html>", "no IDX file"),
        (idx_bytes(ARRAY)[:-1], "27 bytes where 28 belong"),
        (idx_bytes(ARRAY) + b"x", "29 bytes where 28 belong"),
        (idx_bytes(ARRAY)[:12], "cut short"),
        (idx_bytes(ARRAY)[:11], "cut short"),
    ],
)
def test_a_damaged_file_is_named(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "train-images"
    path.write_bytes(content)
    with pytest.raises(BadFile, match=f"train-images: .*{message}"):
        read_idx(path, content_of(path))


@pytest.mark.parametrize(
    "content", [gzip.compress(idx_bytes(ARRAY))[:-9], b"no gzip", b""], ids=["cut", "no gzip", "empty"]
)
def test_a_damaged_compressed_file_is_named(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "train-images.gz"
    path.write_bytes(content)
    with pytest.raises(BadFile, match=r"train-images\.gz: "):
        read_idx(path, content_of(path))
