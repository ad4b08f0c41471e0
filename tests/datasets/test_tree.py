"""What is looked at in a folder, and in which order, on every file system alike."""

import os
import unicodedata
from collections import Counter
from pathlib import Path

import pytest

from daso_bench.datasets.tree import class_name, folders_in, images_below, is_hidden, loose_images, natural


def test_numbers_in_names_count_by_their_value() -> None:
    names = ["b.jpg", "10.jpg", "2.jpg", "a10b2.jpg", "a10b10.jpg", "a2.jpg", "02.jpg", "²3.jpg"]
    wanted = ["02.jpg", "2.jpg", "10.jpg", "a2.jpg", "a10b2.jpg", "a10b10.jpg", "b.jpg", "²3.jpg"]
    for listed in (names, names[::-1], sorted(names)):
        assert sorted(listed, key=natural) == wanted


def test_hidden_names_and_clutter_are_not_looked_at(tmp_path: Path) -> None:
    for name in (".ipynb_checkpoints", "cats", "__MACOSX", "Dogs"):
        (tmp_path / name).mkdir()
    (tmp_path / "file.jpg").touch()
    assert folders_in(str(tmp_path)) == ["Dogs", "cats"]
    assert all(is_hidden(name) for name in ("._x.jpg", ".DS_Store", "Thumbs.db", "desktop.ini"))
    assert not is_hidden("x.jpg")


def test_images_are_found_at_any_depth_and_other_files_counted(tmp_path: Path) -> None:
    for name in ("10.JPG", "2.jpeg", "deep/er/1.png", "notes.txt", "README", "._2.jpeg", ".git/x.jpg"):
        path = tmp_path / "cats" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"123")
    others: Counter[str] = Counter()
    found = images_below(str(tmp_path), "cats", 7, others)
    assert [file.path for file in found] == ["cats/2.jpeg", "cats/10.JPG", "cats/deep/er/1.png"]
    assert {(file.label, file.size) for file in found} == {(7, 3)}
    assert others == {".txt": 1, "no suffix": 1}


def test_links_are_followed_but_not_in_circles(tmp_path: Path) -> None:
    real = tmp_path / "elsewhere"
    real.mkdir()
    (real / "1.jpg").touch()
    (real / "back").symlink_to(real)
    (tmp_path / "set").mkdir()
    (tmp_path / "set" / "cats").symlink_to(real)
    (real / "gone.jpg").symlink_to(tmp_path / "nothing")
    found = images_below(str(tmp_path / "set"), "cats", 0, Counter())
    assert [file.path for file in found] == ["cats/1.jpg", "cats/gone.jpg"]


def test_a_link_to_itself_is_no_folder(tmp_path: Path) -> None:
    (tmp_path / "cats").mkdir()
    for name in ("self", "self.jpg", "cats/self", "cats/self.jpg"):
        (tmp_path / name).symlink_to(tmp_path / name)
    assert folders_in(str(tmp_path)) == ["cats"]
    assert loose_images(str(tmp_path), "") == ["self.jpg"]
    others: Counter[str] = Counter()
    assert [file.path for file in images_below(str(tmp_path), "cats", 0, others)] == ["cats/self.jpg"]
    assert others == {"no suffix": 1}


def test_images_in_no_class_are_listed(tmp_path: Path) -> None:
    (tmp_path / "train" / "cats.png").mkdir(parents=True)
    for name in ("train/1.jpg", "train/.2.jpg", "train/a.txt"):
        (tmp_path / name).touch()
    assert loose_images(str(tmp_path), "train") == ["train/1.jpg"]


def test_an_accent_is_one_letter_however_it_is_stored() -> None:
    assert class_name(unicodedata.normalize("NFD", "Zürich")) == "Zürich"


@pytest.mark.skipif(os.sep != "/", reason="names of bytes need a POSIX file system")
def test_a_name_that_is_no_utf8_is_kept(tmp_path: Path) -> None:
    (tmp_path / "cats").mkdir()
    (Path(os.fsdecode(os.fsencode(tmp_path) + b"/cats/\xff1.jpg"))).touch()
    (file,) = images_below(str(tmp_path), "cats", 0, Counter())
    assert os.fsencode(file.path) == b"cats/\xff1.jpg"
