"""ImageNet (ILSVRC), in the layout of its challenge or sorted into folders of classes: 1.28 million images.

Source: O. Russakovsky et al., ImageNet Large Scale Visual Recognition Challenge, 2015, arXiv:1409.0575. It is
distributed by image-net.org and Kaggle under their terms; nothing is downloaded here.

The validation images of the challenge (50,000), on which results are published, are the test split here; the
validation split is held out of train. Subsets with fewer classes are read in the same way.
"""

import csv
import re
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import ClassVar

from .dataset import DatasetInfo, at_least
from .imagefolder import FolderDataset
from .listing import File, Tree, folders_in, hold_out, images_below

WNID = re.compile(r"n[0-9]{8}")
# Where train/ and val/ are, below the root: Kaggle's archive, its inner folders, torchvision's layout.
PLACES = ("ILSVRC/Data/CLS-LOC", "Data/CLS-LOC", "")
SOLUTION = "LOC_val_solution.csv"


@dataclass(frozen=True, kw_only=True)
class ImageNet(FolderDataset):
    """Images [channels, crop, crop] of the classes in train/, numbered in the order of their WordNet ids.

    validation_per_class: training images of each class in the validation split.
    Raises ValueError for a value out of range.
    """

    root: str = "imagenet"
    validation_per_class: int = 10

    name: ClassVar[str] = "imagenet"
    upright: ClassVar[bool] = False  # as all published results are

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least("validation_per_class", self.validation_per_class, 1)

    def expected_info(self) -> DatasetInfo:
        if (info := self.info()).samples is not None:
            return info
        held_out = 1000 * self.validation_per_class
        samples = {"train": 1_281_167 - held_out, "validation": held_out, "test": 50_000}
        return DatasetInfo(shape=self.shape, classes=1000, samples=samples)

    def tree(self) -> Tree:
        place = self._place()
        train, val = (f"{place}/{name}" if place else name for name in ("train", "val"))
        names = [name for name in folders_in(str(Path(self.root) / train)) if WNID.fullmatch(name)]
        if len(names) < 2:
            raise ValueError(
                f"{Path(self.root) / train}: {len(names)} folders with WordNet ids (n01440764); there must "
                "be 2 or more, 1000 in all of ImageNet"
            )
        tree = Tree(classes=tuple(names), splits={})
        tree.splits["train"] = self.files_by_class(train, tree)
        if folders_in(str(Path(self.root) / val)):
            tree.splits["test"] = self.files_by_class(val, tree)
        else:
            tree.splits["test"] = self._labelled_files(val, tree)
        if len(names) != 1000:
            tree.warnings.append(f"{len(names)} classes, all of ImageNet has 1000")
        return tree

    def divide(self, splits: dict[str, list[File]]) -> dict[str, list[File]]:
        drawn = hold_out(
            splits["train"],
            lambda samples: self.validation_per_class,
            names=["validation"],
            drawn_as=_class_and_stem,
        )
        return {**splits, **drawn}

    def _place(self) -> str:
        for place in PLACES:
            if all((Path(self.root) / place / name).is_dir() for name in ("train", "val")):
                return place
        places = ", ".join(f"{place}/" if place else "the folder itself" for place in PLACES)
        raise FileNotFoundError(
            f"dataset.root={self.root}: no folders train/ and val/ in {places}; get ImageNet from "
            "image-net.org or Kaggle and unpack it there (docs/data.md shows the layouts)"
        )

    def _labelled_files(self, folder: str, tree: Tree) -> list[File]:
        """The files of a split that lie in one folder; a list has their classes."""
        source, label_of = self._labels(tree.classes)
        files = images_below(self.root, folder, -1, tree.others)
        labelled = []
        for file in files:
            label = label_of.get(Path(file.path).stem)
            if label is None:
                tree.bad.append((file.path, f"has no label in {source}"))
            else:
                labelled.append(File(file.path, label, file.size, file.mtime_ns))
        stems = {Path(file.path).stem for file in files}
        tree.bad.extend(
            (f"{folder}/{name}.JPEG", f"missing; {source} names it") for name in label_of if name not in stems
        )
        return labelled

    def _labels(self, classes: tuple[str, ...]) -> tuple[Path, dict[str, int]]:
        """The file with the labels, and the number of the class by the stem of a file's name."""
        root = Path(self.root)
        for folder in (root, root / "ILSVRC", root.parent):
            if (folder / SOLUTION).is_file():
                return folder / SOLUTION, _from_solution(folder / SOLUTION, classes)
        raise FileNotFoundError(
            f"dataset.root={self.root}: val/ has no folders of classes, and its labels are not there: "
            f"put Kaggle's {SOLUTION} into {self.root}, or sort val/ into folders as torchvision wants it"
        )


def _class_and_stem(path: str) -> str:
    """Class and stem of a training image, without the place of train/ and the suffix."""
    below_train = path[f"/{path}".index("/train/") + len("train/") :]
    return f"{below_train.split('/')[0]}/{PurePosixPath(path).stem}"


def _from_solution(path: Path, classes: tuple[str, ...]) -> dict[str, int]:
    """Labels of Kaggle's file: ImageId,PredictionString; the latter begins with the WordNet id."""
    labels = {name: number for number, name in enumerate(classes)}
    with open(path, encoding="utf-8", newline="") as file:
        rows = [row for row in csv.reader(file) if row and row[0] != "ImageId"]
    label_of = {}
    for number, row in enumerate(rows, 2):
        name = row[1].split()[0] if len(row) > 1 and row[1].split() else ""
        if name not in labels:
            raise ValueError(f"{path}: line {number}: {name or 'nothing'}: not among the classes of train/")
        label_of[row[0]] = labels[name]
    return label_of
