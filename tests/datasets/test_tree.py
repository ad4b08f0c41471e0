"""Files of a folder in one order on every system; what is held out of train, the same whatever the order."""

import os
import random
import unicodedata
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from daso_bench.datasets.tree import (
    File,
    class_name,
    folders_in,
    hold_out,
    images_below,
    is_hidden,
    loose_images,
    natural,
    share_of_class,
)


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


# ------------------------------------------------------------------ held out of train


def held_out(files: list[File], share: float, *names: str, seed: int = 0) -> dict[str, list[File]]:
    """Drawn by their paths as they are."""
    return hold_out(files, share_of_class(share), seed=seed, names=names, drawn_as=lambda path: path)


def files_of(sizes: list[int]) -> list[File]:
    return [File(f"{label}/{n}.jpg", label, 1, 1) for label, size in enumerate(sizes) for n in range(size)]


@given(st.lists(st.integers(1, 40), min_size=1, max_size=5), st.floats(0.01, 0.49))
def test_each_class_gives_its_share_and_keeps_an_image(sizes: list[int], share: float) -> None:
    files = files_of(sizes)
    found = held_out(files, share, "validation", "test")
    assert sorted(file.path for split in found.values() for file in split) == sorted(f.path for f in files)
    for label, size in enumerate(sizes):
        counts = {name: sum(file.label == label for file in split) for name, split in found.items()}
        assert counts["train"] >= 1
        wanted = max(round(share * size), 1) if size >= 3 else 0
        assert counts["validation"] == counts["test"] == min(wanted, (size - 1) // 2)


def test_the_order_of_listing_does_not_matter_and_the_seed_does() -> None:
    files = files_of([30, 30])
    shuffled = random.Random(1).sample(files, len(files))

    def drawn(listed: list[File], seed: int = 0) -> set[str]:
        return {file.path for file in held_out(listed, 0.2, "test", seed=seed)["test"]}

    assert drawn(files) == drawn(shuffled)
    assert drawn(files) != drawn(files, seed=1)
    assert drawn(files) != {f"{label}/{n}.jpg" for label in (0, 1) for n in range(6)}


def test_a_new_file_moves_few_others() -> None:
    files = files_of([100])
    before = held_out(files, 0.1, "test")["test"]
    after = held_out([*files, File("0/new.jpg", 0, 1, 1)], 0.1, "test")["test"]
    assert len({file.path for file in before} & {file.path for file in after}) >= 9


def test_nothing_missing_leaves_all_in_train() -> None:
    files = files_of([5])
    assert held_out(files, 0.1) == {"train": files}


def test_the_draw_is_frozen() -> None:
    """Other files here are other splits than those of published numbers."""
    found = held_out(files_of([20]), 0.2, "validation", "test")
    assert [file.path for file in found["validation"]] == [f"0/{n}.jpg" for n in (1, 2, 6, 18)]
    assert [file.path for file in found["test"]] == [f"0/{n}.jpg" for n in (7, 14, 16, 17)]


def test_what_files_are_drawn_as_decides_and_paths_tell_equals_apart() -> None:
    def drawn(prefix: str, listed: slice) -> set[str]:
        files = [File(f"{prefix}{n}.jpg", 0, 1, 1) for n in range(20)][listed]
        found = hold_out(
            files,
            share_of_class(0.2),
            seed=0,
            names=["test"],
            drawn_as=lambda path: path.removeprefix(prefix),
        )
        return {file.path.removeprefix(prefix) for file in found["test"]}

    assert drawn("", slice(None)) == drawn("deep/down/", slice(None))
    files = files_of([20])
    alike = [
        hold_out(listed, share_of_class(0.2), seed=0, names=["test"], drawn_as=lambda path: "one")["test"]
        for listed in (files, files[::-1])
    ]
    assert set(alike[0]) == set(alike[1])


def test_an_accent_is_one_letter_in_the_draw() -> None:
    names = [f"café/ö{n}.jpg" for n in range(30)]
    drawn = []
    for form in ("NFC", "NFD"):
        stored = [unicodedata.normalize(form, name) for name in names]
        found = held_out([File(name, 0, 1, 1) for name in stored], 0.1, "test")["test"]
        drawn.append([unicodedata.normalize("NFC", file.path) for file in found])
    assert drawn[0] == drawn[1]
