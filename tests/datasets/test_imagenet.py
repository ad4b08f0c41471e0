"""ImageNet's layouts, on small trees made here with its names."""

import dataclasses
from pathlib import Path

import pytest
from pictures import plain, put

from daso_bench.datasets.dataset import DatasetInfo
from daso_bench.datasets.image_files import ImageFiles
from daso_bench.datasets.imagenet import ImageNet

WNIDS = ["n01440764", "n01443537", "n02084071"]
VAL = [f"ILSVRC2012_val_{number:08d}" for number in range(1, 7)]
LABELS = [2, 0, 1, 1, 2, 0]


def small(root: Path, **keys: object) -> ImageNet:
    keys = {"resize": 8, "crop": 8, "validation_per_class": 2, **keys}
    return dataclasses.replace(ImageNet(root=str(root)), **keys)


def make(folder: Path, *, sorted_val: bool) -> None:
    """train/ with six images of each of three classes, val/ with six images."""
    for number, wnid in enumerate(WNIDS):
        for n in range(6):
            put(folder / "train" / wnid / f"{wnid}_{n}.JPEG", plain(10 * number + n))
    for name, label in zip(VAL, LABELS, strict=True):
        place = folder / "val" / WNIDS[label] if sorted_val else folder / "val"
        put(place / f"{name}.JPEG", plain(100 + label))


def solution(path: Path) -> None:
    rows = [
        f"{name},{WNIDS[label]} 85 1 499 272 {WNIDS[label]} 1 1 2 2"
        for name, label in zip(VAL, LABELS, strict=True)
    ]
    path.write_text("ImageId,PredictionString\n" + "\n".join(reversed(rows)) + "\n")


def splits_of(dataset: ImageNet) -> dict[str, ImageFiles]:
    dataset.prepare()
    data = dataset.load()
    assert data.classes == 3
    return {name: data.split(name) for name in ("train", "validation", "test")}  # pyright: ignore


def check(splits: dict[str, ImageFiles]) -> None:
    """ILSVRC's val/ is the test split; two of each class of train/ are the validation split."""
    assert {name: split.labels.bincount().tolist() for name, split in splits.items()} == {
        "train": [4, 4, 4],
        "validation": [2, 2, 2],
        "test": [2, 2, 2],
    }
    for split in (splits["train"], splits["validation"]):
        assert all(WNIDS[label] in path for path, label in zip(split.paths, split.labels, strict=True))
    test = splits["test"]
    found = {Path(path).stem: label for path, label in zip(test.paths, test.labels.tolist(), strict=True)}
    assert found == dict(zip(VAL, LABELS, strict=True))
    assert not set(splits["train"].paths) & set(splits["validation"].paths)
    assert not test.rules.upright, "published results do not apply EXIF orientation either"


@pytest.mark.parametrize("place", ["", "ILSVRC"])
def test_kaggles_archive_with_its_solution(tmp_path: Path, place: str) -> None:
    make(tmp_path / "ILSVRC" / "Data" / "CLS-LOC", sorted_val=False)
    solution(tmp_path / "LOC_val_solution.csv")
    check(splits_of(small(tmp_path / place)))


def test_torchvisions_layout_with_val_sorted_into_classes(tmp_path: Path) -> None:
    make(tmp_path, sorted_val=True)
    check(splits_of(small(tmp_path)))


def test_validation_is_the_same_wherever_the_root_points_and_however_images_are_compressed(
    tmp_path: Path,
) -> None:
    inner = tmp_path / "in" / "ILSVRC" / "Data" / "CLS-LOC"
    make(inner, sorted_val=True)
    make(tmp_path / "flat", sorted_val=True)
    for path in sorted((tmp_path / "flat").rglob("*.JPEG")):
        path.rename(path.with_suffix(".jpg"))
    drawn = []
    for root in (tmp_path / "in", tmp_path / "in" / "ILSVRC", inner, tmp_path / "flat"):
        paths = splits_of(small(root, prepared=str(tmp_path / "kept")))["validation"].paths
        drawn.append([Path(path).stem for path in paths])
    frozen = {"n01440764": (0, 3), "n01443537": (1, 3), "n02084071": (4, 5)}
    assert drawn == [[f"{wnid}_{n}" for wnid, taken in frozen.items() for n in taken]] * 4


def test_missing_labels_and_a_missing_set_are_named(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"no folders train/ and val/ in ILSVRC/Data/CLS-LOC/"):
        small(tmp_path).prepare()
    make(tmp_path, sorted_val=False)
    with pytest.raises(FileNotFoundError, match=r"put Kaggle's LOC_val_solution.csv into"):
        small(tmp_path).prepare()
    (tmp_path / "LOC_val_solution.csv").write_text("ImageId,PredictionString\na,n99999999 1 2 3 4\n")
    with pytest.raises(ValueError, match=r"solution.csv: line 2: n99999999: not among the classes of train/"):
        small(tmp_path).prepare()


def test_images_without_a_label_and_labels_without_an_image_are_bad(tmp_path: Path) -> None:
    make(tmp_path, sorted_val=False)
    solution(tmp_path / "LOC_val_solution.csv")
    (tmp_path / "val" / f"{VAL[0]}.JPEG").rename(tmp_path / "val" / "odd.JPEG")
    with pytest.raises(ValueError, match="2 of 25 files are bad") as caught:
        small(tmp_path).prepare()
    assert "val/odd.JPEG: has no label in" in str(caught.value)
    assert f"val/{VAL[0]}.JPEG: missing; " in str(caught.value)
    assert len(splits_of(small(tmp_path, bad_files="skip"))["test"]) == 5


def test_plans_expect_all_of_imagenet_until_its_files_are_known(tmp_path: Path) -> None:
    make(tmp_path, sorted_val=True)
    dataset = small(tmp_path)
    assert dataset.info().samples is None
    samples = {"train": 1_279_167, "validation": 2_000, "test": 50_000}
    assert dataset.expected_info() == DatasetInfo(shape=(3, 8, 8), classes=1000, samples=samples)
    dataset.prepare()
    assert dataset.expected_info() == dataset.info()
    assert dataset.info().samples == {"train": 12, "validation": 6, "test": 6}
