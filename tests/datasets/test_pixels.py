"""From file to pixels: what becomes of every mode, and the reason where a file cannot be used."""

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from pictures import PNG_GREY, noise, plain, png, put, ramp
from PIL import Image

from daso_bench.datasets.pixels import BadImage, PixelRules, decode, decode_labels, looks_whole, size_of

RULES = PixelRules()
GREY = PixelRules(channels=1)


def shades(image: torch.Tensor) -> list[int]:
    """The colour of the first pixel."""
    return image[:, 0, 0].tolist()


@pytest.mark.parametrize(
    ("mode", "colour", "rules", "expected"),
    [
        ("L", 90, RULES, [90, 90, 90]),
        ("L", 90, GREY, [90]),
        ("RGB", (255, 0, 0), GREY, [round(0.299 * 255)]),
        ("1", 1, RULES, [255, 255, 255]),
        ("RGBA", (9, 9, 9, 0), RULES, [255, 255, 255]),
        ("LA", (100, 128), GREY, [177]),  # (100 * 128 + 255 * 127) / 255
    ],
    ids=["grey", "grey to grey", "luma", "black and white", "clear", "half clear"],
)
def test_colours_by_hand(
    tmp_path: Path, mode: str, colour: Any, rules: PixelRules, expected: list[int]
) -> None:
    path = str(put(tmp_path / "a.png", Image.new(mode, (5, 3), colour)))
    assert decode(path, rules).shape == (rules.channels, 3, 5)
    assert shades(decode(path, rules)) == expected
    assert size_of(path) == (5, 3)


@pytest.mark.parametrize("suffix", [".png", ".tif"])
def test_16_bits_are_scaled_and_not_clipped(tmp_path: Path, suffix: str) -> None:
    pixels = decode(str(put(tmp_path / f"deep{suffix}", ramp())), GREY)
    assert pixels.dtype == torch.uint8
    assert pixels.flatten().tolist() == [
        round(value / 257) for value in np.asarray(ramp()).flatten().tolist()
    ]


def test_a_palette_is_replaced_by_its_colours_and_its_clear_entry_by_white(tmp_path: Path) -> None:
    image = Image.new("P", (2, 1))
    image.putpalette([10, 20, 30, 40, 50, 60])
    image.putpixel((1, 0), 1)
    path = str(put(tmp_path / "plain.png", image))
    assert decode(path, RULES)[:, 0].T.tolist() == [[10, 20, 30], [40, 50, 60]]
    clear = str(put(tmp_path / "clear.gif", image, transparency=0))
    assert decode(clear, RULES)[:, 0].T.tolist() == [[255, 255, 255], [40, 50, 60]]


@pytest.mark.parametrize("name", ["ink.tif", "ink.jpg"])
def test_red_ink_is_red(tmp_path: Path, name: str) -> None:
    path = str(put(tmp_path / name, Image.new("CMYK", (16, 16), (0, 255, 255, 0)), quality=100))
    assert shades(decode(path, RULES)) == pytest.approx([255, 0, 0], abs=3)


@pytest.mark.parametrize("suffix", [".jpg", ".png"])
def test_exif_orientation_is_applied_where_the_rules_say_so(tmp_path: Path, suffix: str) -> None:
    exif = Image.Exif()
    exif[0x0112] = 6  # to be turned by a quarter
    path = str(put(tmp_path / f"turned{suffix}", Image.new("RGB", (16, 8)), exif=exif))
    assert decode(path, RULES).shape == (3, 16, 8)
    assert decode(path, PixelRules(upright=False)).shape == (3, 8, 16)


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize(
    ("name", "mode"),
    [
        *(("a.png", mode) for mode in ("1", "L", "LA", "P", "RGB", "RGBA", "I;16")),
        *(("a.tif", mode) for mode in ("1", "L", "P", "RGB", "RGBA", "CMYK", "YCbCr", "I;16")),
        *(("a.jpg", mode) for mode in ("L", "RGB", "CMYK", "YCbCr")),
        *((name, "RGB") for name in ("a.bmp", "a.webp", "a.ppm", "a.gif")),
    ],
)
def test_every_usual_mode_and_format_is_decoded(tmp_path: Path, name: str, mode: str, channels: int) -> None:
    path = str(put(tmp_path / name, Image.new(mode, (5, 3))))
    assert looks_whole(path)
    assert decode(path, PixelRules(channels=channels)).shape == (channels, 3, 5)


@pytest.mark.parametrize("subsampling", [0, 1, 2])
@pytest.mark.parametrize("progressive", [False, True], ids=["baseline", "progressive"])
def test_usual_colour_jpegs_have_pillows_pixels(tmp_path: Path, subsampling: int, progressive: bool) -> None:
    for size in ((1, 1), (7, 9), (33, 50)):
        options = {"quality": 60, "subsampling": subsampling, "progressive": progressive}
        path = put(tmp_path / "a.jpg", noise(*size), **options)
        with Image.open(path) as image:
            assert np.array_equal(decode(str(path), RULES).permute(1, 2, 0).numpy(), np.asarray(image))


def test_of_an_animation_the_first_picture_counts(tmp_path: Path) -> None:
    frames = [Image.new("P", (4, 4), shade) for shade in (0, 1)]
    for frame in frames:
        frame.putpalette([10, 20, 30, 40, 50, 60])
    path = str(put(tmp_path / "moving.gif", frames[0], save_all=True, append_images=frames[1:]))
    assert shades(decode(path, RULES)) == [10, 20, 30]


@pytest.mark.parametrize(("mode", "value"), [("F", 0.5), ("I", 200)])
def test_pixels_without_a_known_white_are_refused(tmp_path: Path, mode: str, value: float) -> None:
    path = str(put(tmp_path / "a.tif", Image.new(mode, (4, 4), value)))
    for read in (size_of, lambda path: decode(path, RULES)):
        with pytest.raises(BadImage, match="nothing says which value is white; save it with 8 or 16 bits"):
            read(path)


def test_every_bad_file_has_its_name_and_a_reason(tmp_path: Path) -> None:
    whole = put(tmp_path / "whole.jpg", plain(100, side=64)).read_bytes()
    os.mkfifo(tmp_path / "pipe.png")  # reading it would wait for ever
    (tmp_path / "folder.png").mkdir()
    for name, content, reason in (
        ("empty.png", b"", r"empty \(0 bytes\)"),
        ("foreign.jpg", b"\0\5\x16\7", r"no image \(starts with 00 05 16 07\)"),
        ("cut.jpg", whole[:-40], "damaged or cut short .jpg file"),
        ("pipe.png", None, "no regular file"),
        ("folder.png", None, "no regular file"),
        ("nowhere.png", None, "No such file"),
    ):
        path = tmp_path / name
        if content is not None:
            path.write_bytes(content)
        with pytest.raises(BadImage, match=reason) as caught:
            decode(str(path), RULES)
        assert str(caught.value).startswith(f"{path}: ")


@pytest.mark.parametrize("share", [0.3, 0.95])
@pytest.mark.parametrize(
    ("name", "options"),
    [("a.jpg", {}), ("a.jpg", {"progressive": True}), ("a.png", {})],
    ids=["jpeg", "progressive", "png"],
)
def test_an_image_overwritten_with_zeros_is_bad_although_its_decoder_takes_them(
    tmp_path: Path, name: str, options: dict[str, object], share: float
) -> None:
    """A thumbnail before the first scan has an end mark of its own."""
    small = put(tmp_path / "small.jpg", plain(5, side=8)).read_bytes()
    comment = {"comment": small} if name == "a.jpg" else {}
    path = put(tmp_path / name, noise(), **options, **comment)
    content = path.read_bytes()
    path.write_bytes(content[: round(share * len(content))].ljust(len(content), b"\0"))
    size_of(str(path))
    with pytest.raises(BadImage, match="damaged or cut short"):
        decode(str(path), RULES)


@pytest.mark.parametrize("name", ["a.jpg", "a.png"])
def test_a_missing_end_is_seen_without_decoding_and_what_follows_it_does_not_count(
    tmp_path: Path, name: str
) -> None:
    path = put(tmp_path / name, noise())
    content, pixels = path.read_bytes(), decode(str(path), RULES)
    assert looks_whole(str(path))
    path.write_bytes(content + b"\0" * 1000)
    assert torch.equal(decode(str(path), RULES), pixels)
    path.write_bytes(content[:-40])
    assert not looks_whole(str(path))


def test_a_changed_byte_among_the_pixels_of_a_png_file_breaks_its_checksum(tmp_path: Path) -> None:
    path = put(tmp_path / "a.png", noise())
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    with pytest.raises(BadImage, match=r"damaged or cut short \.png file: .*checksum"):
        decode(str(path), RULES)


def test_labels_are_the_numbers_in_the_file(tmp_path: Path) -> None:
    numbers = np.arange(34, dtype=np.uint8).reshape(2, 17)
    path = str(put(tmp_path / "mask.png", Image.fromarray(numbers)))
    assert size_of(path, labels=True) == (17, 2)
    assert decode_labels(path).tolist() == numbers.tolist()


@pytest.mark.parametrize("kind", ["2 bits", "4 bits", "16 bits", "colour", "lossy", "clear"])
def test_labels_that_would_be_scaled_blended_or_lossy_are_refused(tmp_path: Path, kind: str) -> None:
    path, grey = tmp_path / "mask.png", Image.new("L", (4, 4), 7)
    if kind in ("2 bits", "4 bits"):
        bits = int(kind[0])
        path.write_bytes(png(bits, PNG_GREY, b"\x01", width=8 // bits))
    else:
        image = {"16 bits": Image.new("I;16", (4, 4), 7), "colour": Image.new("RGB", (4, 4))}.get(kind, grey)
        options = {"transparency": 7} if kind == "clear" else {}
        image.save(path, "JPEG" if kind == "lossy" else "PNG", **options)
    for read in (lambda path: size_of(path, labels=True), decode_labels):
        with pytest.raises(BadImage, match=r"mask\.png: .* must hold one label id a pixel, as a PNG file"):
            read(str(path))
