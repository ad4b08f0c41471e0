"""What is written down of a folder of images, read back by every rank."""

import contextlib
import os
import pickle
from pathlib import Path

import pytest

from daso_bench.datasets.manifest import Manifest, Paths, read_about
from daso_bench.datasets.preparation import BadFile
from daso_bench.datasets.tree import File


def a_manifest() -> Manifest:
    files = {
        "train": [File("train/ä/1.jpg", 0, 1, 1), File("train/b/22.jpg", 1, 1, 1)],
        "validation": [File("val/b/3.jpg", 1, 1, 1)],
        "test": [],
    }
    return Manifest.of(files, {"class_names": ["ä", "b"], "tree": "abc"})


def test_what_is_written_is_read(tmp_path: Path) -> None:
    path = tmp_path / "m.npz"
    a_manifest().write(path)
    found = Manifest.read(path)
    assert list(found.paths["train"]) == ["train/ä/1.jpg", "train/b/22.jpg"]
    assert list(found.paths["test"]) == []
    assert found.labels["train"].tolist() == [0, 1]
    assert found.about == read_about(path)
    assert found.about["samples"] == {"train": 2, "validation": 1, "test": 0}


def test_damage_is_noticed_and_named(tmp_path: Path) -> None:
    path = tmp_path / "m.npz"
    a_manifest().write(path)
    whole = path.read_bytes()
    place = whole.index(b"train/")
    for content in (b"", whole[: len(whole) // 2], whole[:place] + b"X" + whole[place + 1 :]):
        path.write_bytes(content)
        with pytest.raises(BadFile, match=rf"{path}: damaged .* prepare the data set again"):
            Manifest.read(path)
    with pytest.raises(FileNotFoundError):
        Manifest.read(tmp_path / "none.npz")


class Damaged(Exception):
    """The error that a manifest should give, and no other."""


def read(path: Path) -> Manifest:
    try:
        return Manifest.read(path)
    except OSError as error:
        if str(error).startswith(f"{path}: damaged ("):
            raise Damaged from error
        raise


def test_a_changed_byte_of_the_archives_own_lists_is_damage_or_does_no_harm(tmp_path: Path) -> None:
    """Such a byte reads as encryption, a later version, another method, a place outside the file."""
    path = tmp_path / "m.npz"
    a_manifest().write(path)
    whole = path.read_bytes()
    for place in range(whole.rindex(b"PK\1\2"), len(whole)):  # the last entry, and the end
        for flipped in (0x01, 0xFF):
            path.write_bytes(whole[:place] + bytes([whole[place] ^ flipped]) + whole[place + 1 :])
            with contextlib.suppress(Damaged):
                assert read(path).about == a_manifest().about


def test_a_manifest_of_another_format_is_refused(tmp_path: Path) -> None:
    made = a_manifest()
    for format_ in (0, 2):
        made.about["format"] = format_
        made.write(tmp_path / "m.npz")
        with pytest.raises(BadFile, match=f"format {format_}, this version reads 1"):
            read_about(tmp_path / "m.npz")


def test_paths_are_what_the_file_system_spells() -> None:
    odd = os.fsdecode(b"\xff/1.jpg")
    paths = Paths.of(["a", odd, "longer/ß.png"])
    assert list(paths) == ["a", odd, "longer/ß.png"]
    assert list(pickle.loads(pickle.dumps(paths))) == list(paths)
    for wrong in (3, -1):
        with pytest.raises(IndexError):
            paths[wrong]
