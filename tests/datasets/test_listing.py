"""Files of a folder in one order on every system; what is held out of train, the same whatever the order."""

import os
import random
from collections import Counter
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from daso_bench.datasets.listing import File, folders_in, hold_out, images_below, natural


def test_numbers_in_names_count_by_their_value() -> None:
    names = ["b.jpg", "10.jpg", "2.jpg", "a10b2.jpg", "a10b10.jpg", "a2.jpg", "02.jpg", "²3.jpg"]
    wanted = ["02.jpg", "2.jpg", "10.jpg", "a2.jpg", "a10b2.jpg", "a10b10.jpg", "b.jpg", "²3.jpg"]
    for listed in (names, names[::-1], sorted(names)):
        assert sorted(listed, key=natural) == wanted


def test_hidden_names_and_clutter_are_not_looked_at(tmp_path: Path) -> None:
    for name in (".ipynb_checkpoints", "cats", "__MACOSX", "Dogs"):
        (tmp_path / name).mkdir()
    (tmp_path / "file.jpg").touch()
    (tmp_path / "self").symlink_to(tmp_path / "self")
    assert folders_in(str(tmp_path)) == ["Dogs", "cats"]


def test_images_are_found_at_any_depth_and_other_files_counted(tmp_path: Path) -> None:
    """Links are followed; one to nowhere is listed, and a name that is no UTF-8 is kept."""
    names = (
        "10.JPG",
        "2.jpeg",
        "deep/er/1.png",
        "notes.txt",
        "README",
        "._2.jpeg",
        "Thumbs.db",
        ".git/x.jpg",
    )
    for name in names:
        path = tmp_path / "cats" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"123")
    (tmp_path / "elsewhere").mkdir()
    Path(os.fsdecode(os.fsencode(tmp_path) + b"/elsewhere/\xff1.jpg")).write_bytes(b"123")
    (tmp_path / "cats" / "link").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "cats" / "gone.jpg").symlink_to(tmp_path / "nothing")
    others: Counter[str] = Counter()
    files = images_below(str(tmp_path), "cats", 7, others)
    assert [os.fsencode(file.path) for file in files] == [
        b"cats/2.jpeg",
        b"cats/10.JPG",
        b"cats/deep/er/1.png",
        b"cats/gone.jpg",
        b"cats/link/\xff1.jpg",
    ]
    assert [(file.label, file.size) for file in files[:3]] == [(7, 3)] * 3
    assert others == {".txt": 1, "no suffix": 1}


# ------------------------------------------------------------------ held out of train


def held_out(files: list[File], count: int, *names: str) -> dict[str, list[File]]:
    """`count` of each class, drawn by their paths as they are."""
    return hold_out(files, lambda samples: count, names=names, drawn_as=lambda path: path)


def files_of(sizes: list[int]) -> list[File]:
    return [File(f"{label}/{n}.jpg", label, 1, 1) for label, size in enumerate(sizes) for n in range(size)]


@given(st.lists(st.integers(1, 40), min_size=1, max_size=5), st.integers(0, 20))
def test_each_class_gives_its_part_and_keeps_an_image(sizes: list[int], count: int) -> None:
    files = files_of(sizes)
    splits = held_out(files, count, "validation", "test")
    assert sorted(file.path for split in splits.values() for file in split) == sorted(f.path for f in files)
    for label, size in enumerate(sizes):
        counts = {name: sum(file.label == label for file in split) for name, split in splits.items()}
        assert counts["train"] >= 1
        assert counts["validation"] == counts["test"] == min(count, (size - 1) // 2)


def test_the_order_of_listing_does_not_matter_and_a_new_file_moves_few_others() -> None:
    files = files_of([100])
    drawn = {file.path for file in held_out(files, 10, "test")["test"]}
    shuffled = random.Random(1).sample(files, len(files))
    assert {file.path for file in held_out(shuffled, 10, "test")["test"]} == drawn
    after = held_out([*files, File("0/new.jpg", 0, 1, 1)], 10, "test")["test"]
    assert len(drawn & {file.path for file in after}) >= 9


def test_the_draw_is_frozen_and_follows_from_what_files_are_drawn_as() -> None:
    """Other files here are other splits than those of published numbers."""
    for prefix in ("", "deep/down/"):
        files = [File(f"{prefix}{file.path}", 0, 1, 1) for file in files_of([20])]
        splits = hold_out(
            files,
            lambda samples: 4,
            names=["validation", "test"],
            drawn_as=lambda path, prefix=prefix: path.removeprefix(prefix),
        )
        assert [file.path for file in splits["validation"]] == [f"{prefix}0/{n}.jpg" for n in (1, 2, 6, 18)]
        assert [file.path for file in splits["test"]] == [f"{prefix}0/{n}.jpg" for n in (7, 14, 16, 17)]
