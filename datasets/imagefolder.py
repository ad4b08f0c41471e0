"""Data sets of image files with a label each; `ImageFolder` has a folder for each class.

  root/train/CLASS/...  root/validation/CLASS/... (or val)  root/test/CLASS/...
  root/CLASS/...                                            all of it is train

A missing split is held out of train: the share `holdout` of each class, rounded, at least one image of a
class that has three or more. The classes are the folders of train, in the order of their code points, for
all splits.
"""

from abc import ABC
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

from torch import Tensor

from .data import SPLITS
from .dataset import at_least
from .image_files import ImageFiles
from .listing import File, Tree, folders_in, hold_out, images_below, listed_classes, loose_images
from .pixels import PixelRules, decode, looks_whole, size_of
from .transforms import Change, centre_crop, recipe
from .verification import PreparedFolder

FOLDERS = {"train": "train", "validation": "validation", "val": "validation", "test": "test"}
# Names of splits in other tools, in any case. Read as classes, or ignored, they would be another data set.
LIKE_SPLITS = frozenset(("train", "training", "val", "valid", "validation", "dev", "test", "testing"))


@dataclass(frozen=True, kw_only=True)
class FolderDataset(PreparedFolder, ABC):
    """Images [channels, crop, crop] in files below `root`, one label each.

    Further keys: see `PreparedFolder`; channels: 1 or 3; resize, crop: pixels of the shorter side, and of the
    square cut from the centre; augment: see `transforms.recipe`, applied to the square, except for
    resized_crop_flip, which cuts from the whole image. Raises ValueError for a value out of range.
    """

    channels: int = 3
    resize: int = 256
    crop: int = 224

    upright: ClassVar[bool]  # whether EXIF orientation is applied
    held_out_of: ClassVar[str] = "classes with 3 images or more"
    size_keys = ("resize", "crop")

    def __post_init__(self) -> None:
        at_least("crop", self.crop, 1)
        if self.resize < self.crop:
            raise ValueError(f"dataset.resize={self.resize}: must be >= dataset.crop={self.crop}")
        super().__post_init__()

    @property
    def rules(self) -> PixelRules:
        return PixelRules(channels=self.channels, upright=self.upright)

    @property
    def transform(self) -> Change:
        return partial(centre_crop, resize=self.resize, crop=self.crop)

    @property
    def change(self) -> Change | None:
        change = recipe(self.augment, (self.crop, self.crop))
        if change is None or self.augment == "resized_crop_flip":
            return change
        from torchvision.transforms import v2  # `recipe` has imported it

        return v2.Compose([self.transform, change])

    @property
    def shape(self) -> tuple[int, int, int]:
        return self.channels, self.crop, self.crop

    def look(self, path: str) -> None:
        file = f"{self.root}/{path}"
        size_of(file)
        if self.check == "decode" or not looks_whole(file):
            decode(file, self.rules)

    def lacking(self, classes: Sequence[str], splits: dict[str, list[File]]) -> list[str]:
        warnings = []
        for split, files in splits.items():
            absent = set(range(len(classes))) - {file.label for file in files}
            if absent:
                warnings.append(
                    f"{split}: no image of {listed_classes([classes[n] for n in sorted(absent)])}"
                )
        return warnings

    def samples_of(self, labels: Tensor, common: dict[str, Any]) -> ImageFiles:
        return ImageFiles(labels=labels, **common)

    def files_by_class(self, folder: str, tree: Tree) -> list[File]:
        """The files of a split with a folder for each class, below `root`; misplaced ones go to `tree.bad`.

        Raises ValueError for the folder of an unknown class.
        """
        where = Path(self.root) / folder
        present = folders_in(str(where))
        extra = [name for name in present if name not in tree.classes]
        if extra:
            raise ValueError(
                f"{where}: {listed_classes(extra)} not among the classes of train/: remove the folder, or "
                "add the class"
            )
        tree.bad.extend(loose_images(self.root, folder))
        files: list[File] = []
        for label, name in enumerate(tree.classes):
            if name in present:
                below = f"{folder}/{name}" if folder else name
                files += images_below(self.root, below, label, tree.others)
        return files


@dataclass(frozen=True, kw_only=True)
class ImageFolder(FolderDataset):
    """Images [channels, crop, crop]; each folder is a class.

    holdout: share of train for a missing split. Raises ValueError for a value out of range.
    """

    root: str = "images"
    holdout: float = 0.1

    name: ClassVar[str] = "imagefolder"
    upright: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 < self.holdout < 0.5:
            raise ValueError(f"dataset.holdout={self.holdout}: must be above 0 and below 0.5")

    def tree(self) -> Tree:
        folders = self._split_folders()
        names = folders_in(str(Path(self.root) / folders["train"]))
        if len(names) < 2:
            raise ValueError(
                f"dataset.root={self.root}: {len(names)} classes; there must be 2 or more folders of images "
                "in train/, or in the root where there is no train/ (docs/data.md shows the layouts)"
            )
        tree = Tree(classes=tuple(names), splits={})
        for split in SPLITS:
            if split in folders:
                tree.splits[split] = self.files_by_class(folders[split], tree)
        return tree

    def divide(self, splits: dict[str, list[File]]) -> dict[str, list[File]]:
        drawn = hold_out(
            splits["train"],
            lambda samples: max(round(self.holdout * samples), 1) if samples >= 3 else 0,
            names=[name for name in ("validation", "test") if name not in splits],
            drawn_as=lambda path: path.removeprefix("train/"),  # class and path in its folder
        )
        return {**splits, **drawn}

    def _split_folders(self) -> dict[str, str]:
        """The folder of each split below the root, empty for the root itself."""
        root = Path(self.root)
        if not root.is_dir():
            what = "is no folder" if root.exists() else "no such folder"
            raise FileNotFoundError(f"dataset.root={self.root}: {what}")
        named = [name for name in folders_in(self.root) if name.lower() in LIKE_SPLITS]
        if not named:
            return {"train": ""}
        splits = {FOLDERS.get(name, ""): name for name in named}
        if "" in splits or "train" not in splits or len(splits) < len(named):
            raise ValueError(
                f"dataset.root={self.root}: has {', '.join(f'{name}/' for name in named)}; folders of splits "
                "must be named train/, validation/ or val/, and test/, one of each and train/ among them: "
                "rename them, or put them into train/ if they are classes"
            )
        return splits
