"""What JPEG and PNG files say of their own end, and what others cannot."""

from pathlib import Path

import pytest
from pictures import noise, plain, put
from PIL import Image

from daso_bench.datasets.end_marks import damage, looks_whole


@pytest.mark.parametrize("name", ["a.jpg", "a.png"])
def test_a_missing_end_is_seen_without_decoding(tmp_path: Path, name: str) -> None:
    whole = put(tmp_path / name, plain(100, side=64))
    assert looks_whole(str(whole))
    assert damage(whole.read_bytes()) is None
    for cut in (40, 12, 1):
        content = whole.read_bytes()[:-cut]
        assert damage(content) == "has no end mark"
    whole.write_bytes(whole.read_bytes()[:-40])
    assert not looks_whole(str(whole))


def test_formats_without_an_end_mark_pass(tmp_path: Path) -> None:
    for name in ("a.bmp", "a.tif", "a.webp", "a.ppm", "a.gif"):
        path = put(tmp_path / name, plain(1))
        assert looks_whole(str(path))
        assert damage(path.read_bytes()) is None


@pytest.mark.parametrize("name", ["a.jpg", "a.png"])
def test_what_follows_the_end_does_not_count(tmp_path: Path, name: str) -> None:
    content = put(tmp_path / name, noise()).read_bytes()
    assert damage(content + b"\0" * 1000) is None


def test_the_end_of_a_small_picture_before_the_first_scan_is_not_the_files_own(tmp_path: Path) -> None:
    small = put(tmp_path / "small.jpg", plain(5, side=8)).read_bytes()
    exif = Image.Exif()
    exif[0x010E] = small.decode("latin-1")  # a text; what matters is that the mark is in there
    content = put(tmp_path / "a.jpg", noise(), exif=exif, comment=small).read_bytes()
    assert content.count(b"\xff\xd9") > 1
    assert damage(content) is None
    assert damage(content[:-40].ljust(len(content), b"\0")) == "has no end mark"


def test_fill_bytes_before_a_marker_are_stepped_over(tmp_path: Path) -> None:
    small = put(tmp_path / "small.jpg", plain(5, side=8)).read_bytes()
    content = put(tmp_path / "a.jpg", noise(), comment=small).read_bytes()
    filled = content[:2] + b"\xff\xff" + content[2:]
    assert damage(filled[:-40].ljust(len(filled), b"\0")) == "has no end mark"
    assert damage(filled + b"\0" * 1000) is None


def test_a_changed_byte_among_the_pixels_of_a_png_file_breaks_its_checksum(tmp_path: Path) -> None:
    content = bytearray(put(tmp_path / "a.png", noise()).read_bytes())
    content[len(content) // 2] ^= 1
    assert damage(bytes(content)) == "the checksum of its pixels does not fit"
