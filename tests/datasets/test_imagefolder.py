"""`imagefolder`: splits of its own or held out, classes, bad files, refused layouts."""

import dataclasses
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from pictures import field_images, plain, put

from daso_bench.datasets import verification
from daso_bench.datasets.dataset import Tell
from daso_bench.datasets.image_files import ImageFiles
from daso_bench.datasets.imagefolder import ImageFolder
from daso_bench.datasets.pixels import BadImage


def small(root: Path, **keys: object) -> ImageFolder:
    """A data set of 8 × 8 images."""
    return dataclasses.replace(ImageFolder(root=str(root), resize=8, crop=8), **keys)


def loaded(dataset: ImageFolder) -> dict[str, ImageFiles]:
    """Its splits, prepared."""
    dataset.prepare()
    data = dataset.load()
    splits = {name: data.split(name) for name in ("train", "validation", "test")}
    assert all(isinstance(split, ImageFiles) for split in splits.values())
    return splits  # pyright: ignore[reportReturnType] (just asserted)


def about_of(dataset: ImageFolder) -> dict[str, Any]:
    """Facts about it, prepared."""
    dataset.prepare()
    about = dataset.about()
    assert about is not None
    return about


@pytest.fixture
def images(tmp_path: Path) -> Path:
    return field_images(tmp_path / "imgs")


@pytest.fixture
def three(tmp_path: Path) -> Path:
    """Two classes of 10 and 20 images, no splits."""
    for name, count in (("cats", 10), ("dogs", 20)):
        for n in range(count):
            put(tmp_path / "set" / name / f"{n}.png", plain(n + 100 * (name == "dogs"), side=8))
    return tmp_path / "set"


def test_the_content_is_looked_at_before_each_start(three: Path) -> None:
    """Also where times are as they were; the manifest is made again, and a run that goes on is refused."""
    dataset = small(three, check="none")
    before = about_of(dataset)["files"]
    for path in three.glob("*/*.png"):
        content, times = bytearray(path.read_bytes()), path.stat()
        content[len(content) // 2] ^= 1
        path.write_bytes(content)
        os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
    assert about_of(dataset)["files"] != before


def test_skip_leaves_them_out_and_counts_them(images: Path) -> None:
    dataset = small(images, bad_files="skip")
    splits, about = loaded(dataset), about_of(dataset)
    assert {name: len(split) for name, split in splits.items()} == {"train": 32, "validation": 6, "test": 4}
    assert [path for path, _ in about["bad"]] == ["train/90/cut.jpg", "train/90/empty.png"]
    assert about["class_names"] == ["0", "180", "270", "90"]  # and not the hidden folder
    assert about["held_out"] == ["test"]
    info = dataset.info()
    assert info.samples is not None
    assert (info.classes, info.samples["train"], info.samples["test"]) == (4, 32, 4)
    assert not any("cut" in path or "empty" in path for path in splits["train"].paths)
    # One list of classes for all splits: numbered anew in val/, 270 would be 1 and 90 would be 2.
    validation = splits["validation"]
    assert list(validation.paths) == [f"val/{name}/{n}.jpg" for name in ("0", "270", "90") for n in (0, 1)]
    assert validation.labels.tolist() == [0, 0, 2, 2, 3, 3]
    assert about["warnings"] == ["validation: no image of class '180'"]


def test_a_folder_without_splits_is_divided_class_by_class(three: Path) -> None:
    splits = loaded(small(three, holdout=0.2))
    assert {name: split.labels.bincount().tolist() for name, split in splits.items()} == {
        "train": [6, 12],
        "validation": [2, 4],
        "test": [2, 4],
    }
    paths = [path for split in splits.values() for path in split.paths]
    assert len(set(paths)) == 30
    assert list(splits["train"].paths) != sorted(splits["train"].paths)  # 10.png comes after 9.png
    again = loaded(small(three, holdout=0.2, prepared=str(three.parent / "kept")))
    assert list(again["test"].paths) == list(splits["test"].paths)


def test_ranks_only_read_and_all_read_the_same(three: Path) -> None:
    dataset = small(three)
    splits = loaded(dataset)
    before = dataset.manifest_file.stat()
    (three / "cats" / "5.png").unlink()
    (three / "cats" / "new.png").write_bytes(b"")
    assert len(dataset.load().train) == len(splits["train"])
    assert dataset.manifest_file.stat() == before
    assert sorted(path.name for path in (three / ".daso-bench").iterdir()) == [
        ".daso-bench.lock",
        dataset.manifest_file.name,
    ]


@pytest.fixture
def examined(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The number of files of each examination."""
    counts: list[int] = []
    real = ImageFolder.bad_among

    def bad_among(self: ImageFolder, paths: list[str], tell: Tell) -> list[tuple[str, str]]:
        counts.append(len(paths))
        return real(self, paths, tell)

    monkeypatch.setattr(ImageFolder, "bad_among", bad_among)
    return counts


def test_files_are_examined_again_only_when_something_changed(three: Path, examined: list[int]) -> None:
    dataset = small(three)
    for _ in range(2):
        dataset.prepare()
    assert examined == [30]
    put(three / "cats" / "99.png", plain(3, side=8))
    dataset.prepare()
    os.utime(three / "cats" / "1.png", ns=(1, 1))
    dataset.prepare()
    assert examined == [30, 31, 31]
    (three / "cats" / "99.png").unlink()
    dataset.prepare()
    assert dataset.info().samples == {"train": 24, "validation": 3, "test": 3}


def test_keys_that_change_what_is_used_have_a_manifest_of_their_own(three: Path) -> None:
    one = small(three)
    for other in (
        {"holdout": 0.2},
        {"channels": 1, "mean": (0.4,), "std": (0.2,)},
        {"check": "decode"},
        {"bad_files": "skip"},
    ):
        assert small(three, **other).manifest_file != one.manifest_file
    for same in ({"crop": 4}, {"std": (1.0, 1.0, 1.0)}):
        assert small(three, **same).manifest_file == one.manifest_file
    kept = str(three / "kept")
    assert small(three, prepared=kept).manifest_file.parent == Path(kept)
    elsewhere = dataclasses.replace(small(three, prepared=kept), root=str(three / "cats"))
    assert elsewhere.manifest_file != small(three, prepared=kept).manifest_file


def spoiled_inside(path: Path) -> None:
    """A JPEG file whose end mark is there, and whose tables are not."""
    content = bytearray(path.read_bytes())
    content[20:22] = b"\0\0"
    start = content.index(b"\xff\xc4")
    content[start : start + 4] = b"\0\0\0\0"
    path.write_bytes(content)


def cut_short(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-30])


@pytest.mark.parametrize(
    ("file", "spoil", "check", "is_found"),
    [
        ("3.jpg", spoiled_inside, "headers", False),
        ("3.jpg", spoiled_inside, "decode", True),
        ("3.jpg", spoiled_inside, "none", False),
        ("3.png", cut_short, "headers", True),
        ("3.png", cut_short, "none", False),
    ],
)
def test_damage_is_found_by_the_check_or_named_by_training(
    file: str, spoil: Callable[[Path], None], check: str, is_found: bool, three: Path
) -> None:
    path, name = put(three / "cats" / file, plain(50, side=64)), f"cats/{file}"
    spoil(path)
    dataset = small(three, check=check)
    if is_found:
        with pytest.raises(ValueError, match=rf"1 of 3\d files are bad(.|\n)*{name}: damaged or cut short"):
            dataset.prepare()
        return
    (split,) = [split for split in loaded(dataset).values() if name in list(split.paths)]
    with pytest.raises(BadImage, match=rf"{path}: damaged or cut short"):
        split.batch(torch.tensor([list(split.paths).index(name)]))


def test_layouts_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"dataset.root=.*none: no such folder"):
        small(tmp_path / "none").prepare()
    with pytest.raises(ValueError, match=r"0 classes; there must be 2 or more"):
        small(tmp_path).prepare()
    put(tmp_path / "val" / "a" / "1.png", plain(1))
    with pytest.raises(ValueError, match=r"has val/; folders of splits must be .* and train/ among them"):
        small(tmp_path).prepare()
    put(tmp_path / "train" / "a" / "1.png", plain(1))
    (tmp_path / "validation").mkdir()
    with pytest.raises(
        ValueError, match=r"has train/, val/, validation/; folders of splits must be .* one of each"
    ):
        small(tmp_path).prepare()
    (tmp_path / "validation").rmdir()
    put(tmp_path / "train" / "b" / "1.png", plain(1))
    put(tmp_path / "val" / "45" / "0.jpg", plain(1))
    with pytest.raises(ValueError, match=r"val: class '45' not among the classes of train/"):
        small(tmp_path).prepare()


@pytest.mark.parametrize(
    "names", [("Train", "Test"), ("training", "testing"), ("cats", "dogs", "VALID"), ("a", "dev")]
)
def test_folders_that_others_call_splits_are_refused(tmp_path: Path, names: tuple[str, ...]) -> None:
    """Taken for classes they would be learnt, and left out their images would be held out of train anew."""
    for name in names:
        put(tmp_path / name / "cats" / "1.png", plain(1))
    odd = ", ".join(f"{name}/" for name in sorted(names) if name not in ("a", "cats", "dogs"))
    with pytest.raises(ValueError, match=rf"has {odd}; folders of splits must be named train/, "):
        small(tmp_path).tree()


def test_splits_do_not_depend_on_where_the_root_points(tmp_path: Path) -> None:
    drawn = []
    for folder in ("one", "two/train"):
        for name in ("cats", "a=b, #1 'x'"):
            for n in range(12):
                put(tmp_path / folder / name / f"{n}.png", plain(n, side=8))
    for root in ("one", "two", "two/train"):
        splits = loaded(small(tmp_path / root, prepared=str(tmp_path / "kept"), holdout=0.25))
        drawn.append({name: [path.removeprefix("train/") for path in s.paths] for name, s in splits.items()})
        assert [len(split) for split in splits.values()] == [12, 6, 6]
    assert drawn[1:] == drawn[:1] * 2


def test_a_damaged_manifest_and_one_of_another_format_are_made_anew(
    three: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A changed byte, or the end missing; a rank that meets one names it and the way out."""
    dataset = small(three)
    dataset.prepare()
    path, whole = dataset.manifest_file, dataset.manifest_file.read_bytes()
    place = whole.index(b"cats/")
    for content in (b"", whole[: len(whole) // 2], whole[:place] + b"X" + whole[place + 1 :]):
        path.write_bytes(content)
        with pytest.raises(OSError, match=rf"{path}: damaged .* prepare the data set again"):
            dataset.manifest()
    path.write_bytes(whole[: len(whole) // 2])
    dataset.prepare()
    assert path.read_bytes() == whole
    monkeypatch.setattr(verification, "FORMAT", verification.FORMAT + 1)
    with pytest.raises(OSError, match=r"damaged \(format 3, this version reads 4"):
        dataset.manifest()
    dataset.prepare()
    assert len(dataset.manifest().paths["train"]) == 24


def test_a_class_too_small_to_be_held_out_of_is_told(three: Path) -> None:
    for n in range(2):
        put(three / "cows" / f"{n}.png", plain(n, side=8))
    warnings = [f"{name}: no image of class 'cows'" for name in ("validation", "test")]
    assert about_of(small(three))["warnings"] == warnings


def test_what_is_no_file_or_in_no_class_is_bad_and_neither_waits_nor_ends_the_listing(three: Path) -> None:
    put(three / "lost.png", plain(1))
    os.mkfifo(three / "cats" / "pipe.png")
    (three / "cats" / "self.png").symlink_to("self.png")
    with pytest.raises(ValueError, match="3 of 33 files are bad") as caught:
        small(three).prepare()
    assert "lost.png: lies in no class's folder" in str(caught.value)
    assert "cats/pipe.png: no regular file" in str(caught.value)
    assert "cats/self.png: Too many levels of symbolic links" in str(caught.value)
    assert sum(map(len, loaded(small(three, bad_files="skip")).values())) == 30


def test_a_prepared_set_needs_no_right_to_write(three: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    small(three).prepare()

    def refused(folder: Path) -> object:
        raise PermissionError(folder)

    monkeypatch.setattr(verification, "locked", refused)
    small(three).prepare()
    with pytest.raises(OSError, match=r"dataset\.prepared=FOLDER"):
        small(three, holdout=0.3).prepare()
    monkeypatch.undo()

    def stale(self: ImageFolder, paths: object, tell: object) -> object:
        raise OSError("Stale file handle")  # of a file: another folder for the manifest is no way out

    monkeypatch.setattr(ImageFolder, "bad_among", stale)
    with pytest.raises(OSError, match=r"^Stale file handle$"):
        small(three, holdout=0.3).prepare()
