"""Whether JPEG and PNG files are whole; the quick way through usual JPEGs: Pillow's pixels to the bit."""

import io
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from pictures import noise, plain, put
from PIL import Image

from daso_bench.datasets import pixels
from daso_bench.datasets.image_formats import damage, looks_whole, plain_jpeg
from daso_bench.datasets.pixels import BadImage, PixelRules, decode_content


def picture(height: int = 33, width: int = 50, mode: str = "RGB") -> Image.Image:
    """A slope with noise on it."""
    generator = np.random.default_rng(height * width)
    slope = np.add.outer(np.arange(height) * 2.0, np.arange(width) * 3.0)[..., None] % 256
    values = np.clip(slope + generator.normal(0, 25, (height, width, 3)), 0, 255).astype(np.uint8)
    return Image.fromarray(values).convert(mode)


def jpeg(image: Image.Image, **options: Any) -> bytes:
    content = io.BytesIO()
    image.save(content, options.pop("format", "JPEG"), **options)
    return content.getvalue()


def by_pillow(content: bytes, rules: PixelRules, monkeypatch: pytest.MonkeyPatch) -> torch.Tensor | str:
    with monkeypatch.context() as patched:
        patched.setattr(pixels, "plain_jpeg", lambda content, *, upright: None)
        return result(content, rules)


def result(content: bytes, rules: PixelRules) -> torch.Tensor | str:
    try:
        return decode_content(content, "some.jpg", rules)
    except BadImage as error:
        return error.reason


@pytest.mark.parametrize("size", [(1, 1), (7, 9), (33, 50)])
@pytest.mark.parametrize("subsampling", [0, 1, 2])
@pytest.mark.parametrize("progressive", [False, True])
def test_usual_files_have_pillows_pixels(
    size: tuple[int, int], subsampling: int, progressive: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    for quality in (10, 90):
        content = jpeg(picture(*size), quality=quality, subsampling=subsampling, progressive=progressive)
        quick = plain_jpeg(content, upright=True)
        assert quick is not None
        assert (quick.shape, quick.dtype) == ((3, *size), torch.uint8)
        assert torch.equal(quick, torch.as_tensor(by_pillow(content, PixelRules(), monkeypatch)))


def exif(orientation: int) -> Image.Exif:
    made = Image.Exif()
    made[0x0112] = orientation
    return made


UNUSUAL = {
    "grey": jpeg(picture(mode="L")),
    "CMYK, with Adobe's marker": jpeg(picture(mode="CMYK")),
    "stored as RGB, with Adobe's marker": jpeg(picture(), keep_rgb=True),
    "several pictures": jpeg(picture(), format="MPO", save_all=True, append_images=[picture(9, 9)]),
    "turned": jpeg(picture(), exif=exif(6)),
    "PNG": jpeg(picture(), format="PNG"),
    "12 bits": jpeg(picture()).replace(b"\xff\xc0\x00\x11\x08", b"\xff\xc0\x00\x11\x0c"),
    "arithmetic": jpeg(picture()).replace(b"\xff\xc0\x00\x11\x08", b"\xff\xc9\x00\x11\x08"),
    "no start": jpeg(picture())[1:],
    "no frame": jpeg(picture())[:2] + jpeg(picture())[jpeg(picture()).index(b"\xff\xda") :],
    "start alone": b"\xff\xd8\xff",
    "empty": b"",
}


@pytest.mark.parametrize("name", UNUSUAL)
def test_anything_else_is_left_to_pillow(name: str) -> None:
    assert plain_jpeg(UNUSUAL[name], upright=True) is None


def test_an_orientation_that_does_not_count_is_nothing_unusual(monkeypatch: pytest.MonkeyPatch) -> None:
    quick = plain_jpeg(UNUSUAL["turned"], upright=False)
    assert quick is not None
    rules = PixelRules(upright=False)
    assert torch.equal(quick, torch.as_tensor(by_pillow(UNUSUAL["turned"], rules, monkeypatch)))


def test_for_a_model_of_grey_images_pillow_makes_grey(monkeypatch: pytest.MonkeyPatch) -> None:
    rules, content = PixelRules(channels=1), jpeg(picture())
    found = decode_content(content, "some.jpg", rules)
    assert found.shape == (1, 33, 50)
    assert torch.equal(found, torch.as_tensor(by_pillow(content, rules, monkeypatch)))


def test_what_pillow_calls_a_bomb_is_left_to_it(monkeypatch: pytest.MonkeyPatch) -> None:
    content = jpeg(picture())
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 33 * 50 - 1)
    assert plain_jpeg(content, upright=True) is None


def test_damaged_files_end_as_with_pillow(monkeypatch: pytest.MonkeyPatch) -> None:
    """Cut anywhere, or with some bytes replaced: the same pixels, or the same words."""
    generator = np.random.default_rng(4)
    seen = {"pixels": 0, "words": 0}
    for number in range(150):
        content = bytearray(jpeg(picture(40, 48), quality=80, progressive=number % 2 == 0))
        if number % 3:
            content[int(generator.integers(2, len(content)))] = int(generator.integers(256))
        else:
            del content[int(generator.integers(4, len(content))) :]
        ours = result(bytes(content), PixelRules())
        theirs = by_pillow(bytes(content), PixelRules(), monkeypatch)
        assert type(ours) is type(theirs)
        if isinstance(ours, torch.Tensor):
            assert torch.equal(ours, torch.as_tensor(theirs))
        else:
            assert ours == theirs
        seen["words" if isinstance(ours, str) else "pixels"] += 1
    assert min(seen.values()) > 20


def test_where_torchvision_no_longer_decodes_pillow_does(monkeypatch: pytest.MonkeyPatch) -> None:
    content = jpeg(picture())
    expected = decode_content(content, "some.jpg", PixelRules())
    monkeypatch.setitem(sys.modules, "torchvision.io", None)
    assert plain_jpeg(content, upright=True) is None
    assert torch.equal(decode_content(content, "some.jpg", PixelRules()), expected)


def test_fill_bytes_before_a_marker_change_no_pixel(monkeypatch: pytest.MonkeyPatch) -> None:
    content = jpeg(picture())
    filled = content[:2] + b"\xff\xff" + content[2:]
    quick = plain_jpeg(filled, upright=True)
    assert quick is not None
    pillow = by_pillow(filled, PixelRules(), monkeypatch)
    assert isinstance(pillow, torch.Tensor)
    assert torch.equal(quick, pillow)


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
