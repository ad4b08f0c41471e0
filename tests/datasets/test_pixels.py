"""From file to pixels: what becomes of every mode, and the reason where a file is no image."""

import os
import pickle
import struct
from pathlib import Path

import numpy as np
import pytest
import torch
from pictures import PNG_COLOUR, PNG_GREY, PNG_GREY_ALPHA, noise, plain, png, put, ramp
from PIL import Image

from daso_bench.datasets.pixels import BadImage, PixelRules, decode, header, inspect

UNSIGNED, SIGNED = 1, 2
WHITE_IS_ZERO, BLACK_IS_ZERO = 0, 1
RULES = PixelRules()
GREY = PixelRules(channels=1)


def shades(image: torch.Tensor) -> list[int]:
    """The colour of the first pixel."""
    return image[:, 0, 0].tolist()


def test_grey_is_repeated_and_colour_becomes_luma(tmp_path: Path) -> None:
    grey = str(put(tmp_path / "grey.png", Image.new("L", (5, 3), 90)))
    red = str(put(tmp_path / "red.png", Image.new("RGB", (5, 3), (255, 0, 0))))
    assert decode(grey, RULES).shape == (3, 3, 5)
    assert shades(decode(grey, RULES)) == [90, 90, 90]
    assert shades(decode(grey, GREY)) == [90]
    assert shades(decode(red, GREY)) == [round(0.299 * 255)]
    assert header(grey, RULES).conversions == ("grey to colour",)
    assert header(grey, GREY).conversions == header(red, RULES).conversions == ()
    assert header(red, GREY).conversions == ("colour to grey",)


def test_black_and_white_is_0_and_255(tmp_path: Path) -> None:
    path = str(put(tmp_path / "bits.png", Image.new("1", (4, 4), 1)))
    assert shades(decode(path, RULES)) == [255, 255, 255]


@pytest.mark.parametrize("suffix", [".png", ".tif"])
def test_16_bits_are_scaled_and_not_clipped(tmp_path: Path, suffix: str) -> None:
    path = str(put(tmp_path / f"deep{suffix}", ramp()))
    pixels = decode(path, GREY)
    assert pixels.dtype == torch.uint8
    assert abs(pixels.double().mean() - 127.5) < 0.5
    assert pixels.flatten().tolist() == [
        round(value / 257) for value in np.asarray(ramp()).flatten().tolist()
    ]
    assert header(path, GREY).conversions == ("16 bits to 8",)


@pytest.mark.parametrize(("background", "level"), [("white", 255), ("black", 0)])
def test_alpha_is_laid_over_the_background(tmp_path: Path, background: str, level: int) -> None:
    rules = PixelRules(background=background)
    clear = str(put(tmp_path / "clear.png", Image.new("RGBA", (4, 4), (9, 9, 9, 0))))
    half = str(put(tmp_path / "half.png", Image.new("LA", (4, 4), (100, 128))))
    assert shades(decode(clear, rules)) == [level] * 3
    mixed = (100 * 128 + level * 127) / 255
    assert all(abs(shade - mixed) <= 1 for shade in shades(decode(half, rules)))
    assert header(clear, rules).conversions == ("alpha over background",)


def test_a_palette_is_replaced_by_its_colours_and_its_clear_entry_by_the_background(tmp_path: Path) -> None:
    image = Image.new("P", (2, 1))
    image.putpalette([10, 20, 30, 40, 50, 60])
    image.putpixel((1, 0), 1)
    path = str(put(tmp_path / "plain.png", image))
    assert decode(path, RULES)[:, 0].T.tolist() == [[10, 20, 30], [40, 50, 60]]
    assert header(path, RULES).conversions == ("palette to colours",)
    clear = str(put(tmp_path / "clear.gif", image, transparency=0))
    assert decode(clear, RULES)[:, 0].T.tolist() == [[255, 255, 255], [40, 50, 60]]


def test_cmyk_is_read_inverted_where_adobes_marker_says_so(tmp_path: Path) -> None:
    ink = Image.new("CMYK", (16, 16), (0, 255, 255, 0))  # red
    adobe = put(tmp_path / "adobe.jpg", ink, quality=100)
    content = adobe.read_bytes()
    marker = content.index(b"\xff\xee")
    plain_file = tmp_path / "plain.jpg"
    # Without the marker the same numbers mean the opposite: 0 is no ink.
    plain_file.write_bytes(content[:marker] + content[marker + 16 :])
    assert all(abs(a - b) <= 3 for a, b in zip(shades(decode(str(adobe), RULES)), [255, 0, 0], strict=True))
    assert all(shade <= 3 for shade in shades(decode(str(plain_file), RULES)))
    tiff = str(put(tmp_path / "ink.tif", ink))
    assert shades(decode(tiff, RULES)) == [255, 0, 0]
    assert header(tiff, RULES).conversions == ("CMYK to RGB",)


@pytest.mark.parametrize("suffix", [".jpg", ".png"])
def test_exif_orientation_is_applied_where_the_rules_say_so(tmp_path: Path, suffix: str) -> None:
    image = Image.new("RGB", (16, 8))
    exif = Image.Exif()
    exif[0x0112] = 6  # to be turned by a quarter
    path = str(put(tmp_path / f"turned{suffix}", image, exif=exif))
    assert decode(path, RULES).shape == (3, 16, 8)
    assert header(path, RULES).conversions == ("turned by EXIF",)
    assert decode(path, PixelRules(upright=False)).shape == (3, 8, 16)
    assert header(path, PixelRules(upright=False)).conversions == ()


@pytest.mark.parametrize("orientation", [1, 3, 6])
@pytest.mark.parametrize("upright", [True, False])
def test_a_tiff_file_is_turned_by_its_own_tag_and_that_is_told(
    tmp_path: Path, upright: bool, orientation: int
) -> None:
    exif = Image.Exif()
    exif[0x0112] = orientation
    drawn = noise(4, 6)
    path = str(put(tmp_path / "a.tif", drawn, exif=exif))
    turns = {1: drawn, 3: drawn.transpose(Image.Transpose.ROTATE_180), 6: drawn.rotate(270, expand=True)}
    rules = PixelRules(upright=upright)
    assert np.array_equal(decode(path, rules).permute(1, 2, 0).numpy(), np.asarray(turns[orientation]))
    about = header(path, rules)
    assert about.conversions == (("turned by EXIF",) if orientation != 1 else ())
    assert (about.width, about.height) == turns[orientation].size


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize(
    ("name", "mode"),
    [
        *(("a.png", mode) for mode in ("1", "L", "LA", "P", "RGB", "RGBA", "I;16")),
        *(("a.tif", mode) for mode in ("1", "L", "P", "RGB", "RGBA", "CMYK", "YCbCr", "LAB", "I;16")),
        *(("a.jpg", mode) for mode in ("L", "RGB", "CMYK", "YCbCr")),
    ],
)
def test_what_the_header_passes_is_decoded(tmp_path: Path, name: str, mode: str, channels: int) -> None:
    path = str(put(tmp_path / name, Image.new(mode, (5, 3))))
    rules = PixelRules(channels=channels)
    assert header(path, rules).mode in (mode, "RGB")
    assert decode(path, rules).shape == (channels, 3, 5)


def test_of_an_animation_the_first_picture_counts(tmp_path: Path) -> None:
    frames = [Image.new("P", (4, 4), shade) for shade in (0, 1)]
    for frame in frames:
        frame.putpalette([10, 20, 30, 40, 50, 60])
    path = str(put(tmp_path / "moving.gif", frames[0], save_all=True, append_images=frames[1:]))
    assert shades(decode(path, RULES)) == [10, 20, 30]
    assert "first of several pictures" in header(path, RULES).conversions


def test_pixels_without_a_known_white_are_refused(tmp_path: Path) -> None:
    floats = str(put(tmp_path / "f.tif", Image.new("F", (4, 4), 0.5)))
    big = str(put(tmp_path / "i.tif", Image.new("I", (4, 4), 70_000)))
    for path in (floats, big):
        with pytest.raises(BadImage, match="nothing says which value is white"):
            decode(path, RULES)


@pytest.mark.parametrize(("value", "wanted"), [(511, 2), (65535, 255)])
def test_16_bit_files_of_the_ppm_family_are_scaled_and_told(tmp_path: Path, value: int, wanted: int) -> None:
    grey, colour = tmp_path / "a.pgm", tmp_path / "a.ppm"
    grey.write_bytes(b"P5 1 1 65535\n" + struct.pack(">H", value))
    colour.write_bytes(b"P6 1 1 65535\n" + struct.pack(">HHH", value, value, value))
    for path in (grey, colour):
        assert shades(decode(str(path), RULES)) == [wanted] * 3
        assert "16 bits to 8" in header(str(path), RULES).conversions
    colour.write_bytes(b"P6 1 1 255\n" + bytes((1, 2, 3)))
    assert header(str(colour), RULES).conversions == ()


@pytest.mark.parametrize(
    ("kind", "pixel", "expected"),
    [
        (PNG_COLOUR, struct.pack(">HHH", 0x80FF, 0x01FF, 0xFFFF), [0x80, 0x01, 0xFF]),
        (PNG_GREY_ALPHA, struct.pack(">HH", 511, 65535), [1, 1, 1]),
    ],
)
def test_16_bits_of_colour_and_of_grey_with_alpha_keep_their_upper_ones(
    tmp_path: Path, kind: int, pixel: bytes, expected: list[int]
) -> None:
    path = tmp_path / "deep.png"
    path.write_bytes(png(16, kind, pixel))
    assert shades(decode(str(path), RULES)) == expected
    assert "16 bits to 8" in header(str(path), RULES).conversions


@pytest.mark.parametrize("bits", [2, 4, 8, 16])
def test_a_transparent_grey_is_laid_over_the_background(tmp_path: Path, bits: int) -> None:
    """Of 16 bits one more is another grey, though both become one of 8 bits."""
    path, clear = tmp_path / "clear.png", 2
    pixels = clear << (16 - bits) | (clear + 1) << max(0, 16 - 2 * bits)
    row = struct.pack(">HH", clear, clear + 1) if bits == 16 else struct.pack(">H", pixels)
    path.write_bytes(png(bits, PNG_GREY, row, width=2, transparent=struct.pack(">H", clear)))
    level = round((clear + 1) * 255 / (2**bits - 1))
    for background, laid in (("white", 255), ("black", 0)):
        rules = PixelRules(background=background, channels=1)
        assert decode(str(path), rules)[0, 0].tolist() == [laid, level]
    assert "alpha over background" in header(str(path), RULES).conversions


def test_16_bit_colour_with_a_transparent_one_is_refused(tmp_path: Path) -> None:
    path, pixel = tmp_path / "clear.png", struct.pack(">HHH", 1000, 2000, 3000)
    path.write_bytes(png(16, PNG_COLOUR, pixel, transparent=pixel))
    for read in (header, decode):
        with pytest.raises(
            BadImage, match="16-bit colour of which one is transparent: save it with an alpha"
        ):
            read(str(path), RULES)
    path.write_bytes(png(8, PNG_COLOUR, bytes((1, 2, 3)), transparent=struct.pack(">HHH", 1, 2, 3)))
    assert shades(decode(str(path), RULES)) == [255, 255, 255]


@pytest.mark.parametrize(
    ("bits", "sample_format", "photometric", "reason"),
    [
        (32, UNSIGNED, BLACK_IS_ZERO, "32-bit pixels: nothing says which value is white"),
        (32, SIGNED, BLACK_IS_ZERO, "signed pixels: nothing says which value is white"),
        (16, SIGNED, BLACK_IS_ZERO, "signed pixels"),
        (8, SIGNED, BLACK_IS_ZERO, "signed pixels"),
        (12, UNSIGNED, BLACK_IS_ZERO, "12-bit pixels: Pillow does not scale them"),
        (16, UNSIGNED, WHITE_IS_ZERO, "16-bit pixels of which 0 is white: Pillow does not invert them"),
        (16, UNSIGNED, BLACK_IS_ZERO, None),
        (8, UNSIGNED, WHITE_IS_ZERO, None),
    ],
)
def test_tiff_files_whose_white_is_not_known_are_refused_whatever_their_values(
    tmp_path: Path, bits: int, sample_format: int, photometric: int, reason: str | None
) -> None:
    """200 would do for 16 bits: an image of small values would be nearly black, and nobody told."""
    path = tmp_path / "a.tif"
    path.write_bytes(tiff(bits, sample_format, photometric, struct.pack("<I", 200)))
    for read in (header, decode, inspect):
        if reason is None:
            read(str(path), RULES)
            continue
        with pytest.raises(BadImage, match=reason):
            read(str(path), RULES)


def test_what_is_no_file_is_refused_before_it_is_read(tmp_path: Path) -> None:
    """Opening a pipe that nobody writes to waits for ever."""
    os.mkfifo(tmp_path / "pipe.png")
    (tmp_path / "folder.png").mkdir()
    for name in ("pipe.png", "folder.png"):
        for read in (header, decode, inspect):
            with pytest.raises(BadImage, match=rf"{name}: no regular file"):
                read(str(tmp_path / name), RULES)


def test_every_bad_file_has_its_name_and_a_reason(tmp_path: Path) -> None:
    whole = put(tmp_path / "whole.jpg", plain(100, side=64)).read_bytes()
    bad = {
        "empty.png": (b"", r"empty \(0 bytes\)"),
        "foreign.jpg": (b"\0\5\x16\7", r"no image \(starts with 00 05 16 07\)"),
        "cut.jpg": (whole[: len(whole) - 40], "damaged or cut short .jpg file"),
    }
    for name, (content, reason) in bad.items():
        path = tmp_path / name
        path.write_bytes(content)
        with pytest.raises(BadImage, match=reason) as caught:
            decode(str(path), RULES)
        assert str(caught.value).startswith(f"{path}: ")
    with pytest.raises(BadImage, match=r"nowhere\.png: No such file"):
        decode(str(tmp_path / "nowhere.png"), RULES)


@pytest.mark.parametrize("share", [0.3, 0.95])
@pytest.mark.parametrize(
    ("name", "options"), [("a.jpg", {}), ("a.jpg", {"progressive": True}), ("a.png", {})]
)
def test_an_image_overwritten_with_zeros_is_bad_although_its_decoder_takes_them(
    tmp_path: Path, name: str, options: dict[str, object], share: float
) -> None:
    whole = put(tmp_path / name, noise(), **options)
    content = whole.read_bytes()
    kept = round(share * len(content))
    whole.write_bytes(content[:kept].ljust(len(content), b"\0"))
    header(str(whole), RULES)
    for read in (decode, inspect):
        for rules in (RULES, GREY):
            with pytest.raises(BadImage, match=r"damaged or cut short .*(no end mark|checksum)"):
                read(str(whole), rules)


def test_the_error_survives_the_way_out_of_a_worker_process() -> None:
    error = pickle.loads(pickle.dumps(BadImage("a.jpg", "empty")))
    assert (error.path, error.reason, str(error)) == ("a.jpg", "empty", "a.jpg: empty")


def test_rules_out_of_range_are_refused() -> None:
    with pytest.raises(ValueError, match=r"dataset.channels=2: must be 1 \(grey\) or 3"):
        PixelRules(channels=2)
    with pytest.raises(ValueError, match=r"dataset\.background=grey: must be white or black"):
        PixelRules(background="grey")


def tiff(bits: int, sample_format: int, photometric: int, content: bytes) -> bytes:
    """A grey TIFF file of one pixel, of kinds that Pillow does not write."""
    width, height, strip, rows, strip_bytes = 256, 257, 273, 278, 279
    tags = {width: 1, height: 1, 258: bits, 259: 1, 262: photometric, strip: 8, 277: 1, rows: 1}
    tags |= {strip_bytes: len(content), 339: sample_format}
    entries = b"".join(struct.pack("<HHII", tag, 4, 1, value) for tag, value in tags.items())
    start = b"II*\0" + struct.pack("<I", 8 + len(content)) + content
    return start + struct.pack("<H", len(tags)) + entries + struct.pack("<I", 0)
