"""What `inspect` sees of FA1, and of a data set in memory."""

from pathlib import Path

import torch
from pictures import field_images, plain, put

from daso_bench.datasets.data import SPLITS, Data, Split
from daso_bench.datasets.imagefolder import ImageFolder
from daso_bench.datasets.inspection import inspect_data, inspect_folder
from daso_bench.datasets.shapes import Shapes


def test_everything_of_the_field_cases_is_seen(tmp_path: Path) -> None:
    dataset = ImageFolder(root=str(field_images(tmp_path / "imgs")), check="none")
    told: list[tuple[int, int]] = []
    found = inspect_folder(dataset, threads=3, tell=lambda done, total: told.append((done, total)))
    assert [(path, reason.split(":")[0]) for path, reason in found.bad] == [
        ("train/90/cut.jpg", "damaged or cut short .jpg file"),
        ("train/90/empty.png", "empty (0 bytes)"),
    ]
    assert found.class_names == ["0", "180", "270", "90"]
    assert found.counts == {"train": [11, 7, 7, 7], "validation": [2, 0, 2, 2], "test": [1, 1, 1, 1]}
    assert found.held_out == ["test"]
    assert found.sizes == {"24 x 24": 42}
    assert found.modes == {"RGB": 38, "L": 1, "RGBA": 1, "CMYK": 1, "I;16": 1}
    assert found.conversions["16 bits to 8"] == found.conversions["CMYK to RGB"] == 1
    assert found.warnings == ["val: no image of class '180'"]
    assert found.found_something
    assert told[-1] == (44, 44)
    assert not (tmp_path / "imgs" / ".daso-bench").exists()


def test_images_in_two_splits_are_found_by_their_pixels(tmp_path: Path) -> None:
    for split in ("train", "validation", "test"):
        for name, level in (("a", 10), ("b", 50)):
            for n in range(3):
                put(tmp_path / split / name / f"{n}.png", plain(level + n + 100 * (split != "train"), side=8))
    put(tmp_path / "test" / "b" / "copy.bmp", plain(11, side=8))  # train/a/1.png, in another format and class
    put(tmp_path / "train" / "a" / "copy.png", plain(10, side=8))
    put(tmp_path / "train" / "a" / "wide.png", plain(11, side=8).resize((16, 4)))  # as many pixels
    found = inspect_folder(ImageFolder(root=str(tmp_path)), threads=2)
    groups = [group for group in found.duplicates if len(group) == 2 and group[0][0] == "train"]
    assert groups == [[("train", "a", "train/a/1.png"), ("test", "b", "test/b/copy.bmp")]]
    assert len(found.duplicates) == 1 + 6  # the six that validation and test share
    assert found.repeated == 1
    as_dict = found.as_dict()
    assert as_dict["ok"] is False
    assert as_dict["classes"][0] == {"name": "a", "train": 5, "validation": 3, "test": 3}
    assert as_dict["samples"] == {"train": 8, "validation": 6, "test": 7}


def test_a_clean_folder_has_nothing_to_tell(tmp_path: Path) -> None:
    for number, name in enumerate(("a", "b")):
        for n in range(5):
            put(tmp_path / name / f"{n}.png", plain(100 * number + n, side=8))
    found = inspect_folder(ImageFolder(root=str(tmp_path)), threads=1)
    assert not found.found_something
    assert found.as_dict()["ok"] is True


def test_data_in_memory_are_looked_at_too() -> None:
    def split(levels: list[int], labels: list[int]) -> Split:
        images = torch.tensor(levels, dtype=torch.uint8).view(-1, 1, 1, 1).expand(-1, 1, 2, 2).contiguous()
        return Split(images=images, labels=torch.tensor(labels), mean=(0,), std=(1,))

    data = Data(
        name="some",
        classes=2,
        shape=(1, 2, 2),
        train=split([1, 2, 2], [0, 1, 1]),
        validation=split([3], [0]),
        test=split([1, 4], [0, 1]),
    )
    found = inspect_data(data)
    assert found.counts == {"train": [1, 2], "validation": [1, 0], "test": [1, 1]}
    assert found.duplicates == [[("train", "0", "number 0"), ("test", "0", "number 0")]]
    assert found.repeated == 1
    assert found.warnings == ["validation: no image of class '1'"]
    assert found.sizes == {"2 x 2": 6}


def test_of_masks_in_memory_the_pixels_are_counted() -> None:
    data = Shapes(samples=6, validation_samples=3, test_samples=4, height=16, width=20).load()
    found = inspect_data(data)
    assert found.images == found.as_dict()["samples"] == {"train": 6, "validation": 3, "test": 4}
    _, masks = data.train.batch(torch.arange(6))
    assert found.counts["train"] == [int((masks == label).sum()) for label in range(5)]
    assert found.unlabelled is not None
    assert found.unlabelled["train"] == int((masks == 255).sum()) > 0
    assert found.as_dict()["unlabelled_pixels"] == found.unlabelled
    empty = [(split, label) for split in SPLITS for label in range(5) if not found.counts[split][label]]
    assert found.warnings == [f"{split}: no pixel of class '{label}'" for split, label in empty]
