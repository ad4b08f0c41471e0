"""Any folder of images, a folder for each class: with splits of its own, or with parts held out as splits.

  root/train/CLASS/...  root/validation/CLASS/... (or val)  root/test/CLASS/...
  root/CLASS/...                                            all of it is train

A split that is missing is held out of train: `holdout` of each class, rounded, at least one image of a class
that has three or more. The classes are the folders of train (or `class_names`), in the order of their
letters' codes, for all splits.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from .data import SPLITS
from .folder_dataset import FolderDataset
from .holdout import hold_out, share_of_class
from .tree import File, Tree, class_name, folders_in, images_below, loose_images

FOLDERS = {"train": "train", "validation": "validation", "val": "validation", "test": "test"}


@dataclass(frozen=True, kw_only=True)
class ImageFolder(FolderDataset):
    """Images [channels, crop, crop] of as many classes as there are folders.

    class_names: the classes in the order of their numbers, empty for the folders of train; holdout: share of
    train that makes a missing split; split_seed: of that draw, another value is another data set.
    Raises ValueError for a value out of range.
    """

    root: str = "images"
    class_names: tuple[str, ...] = ()
    holdout: float = 0.1
    split_seed: int = 0

    name: ClassVar[str] = "imagefolder"
    upright: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 < self.holdout < 0.5:
            raise ValueError(f"dataset.holdout={self.holdout}: must be above 0 and below 0.5")
        if len(set(self.class_names)) != len(self.class_names):
            raise ValueError(f"dataset.class_names={list(self.class_names)}: each must be there once")

    def tree(self) -> Tree:
        """See `FolderDataset.tree`."""
        folders = self._split_folders()
        names = self.class_names or self._classes(folders["train"])
        if len(names) < 2:
            raise ValueError(
                f"dataset.root={self.root}: {len(names)} classes; there must be 2 or more folders of images "
                "in train/, or in the root where there is no train/ (docs/data.md shows the layouts)"
            )
        tree = Tree(classes=tuple(names), splits={})
        for split in SPLITS:
            if split in folders:
                tree.splits[split] = self._files(folders[split], tree)
        return tree

    def divide(self, splits: dict[str, list[File]]) -> dict[str, list[File]]:
        """See `FolderDataset.divide`."""
        missing = [name for name in ("validation", "test") if name not in splits]
        drawn = hold_out(splits["train"], share_of_class(self.holdout), self.split_seed, missing)
        return {**splits, **drawn}

    def _split_folders(self) -> dict[str, str]:
        """By split, its folder below the root, empty for the root itself."""
        root = Path(self.root)
        if not root.is_dir():
            raise FileNotFoundError(f"dataset.root={self.root}: no such folder")
        top = [name for name in folders_in(self.root) if name in FOLDERS]
        found = {FOLDERS[name]: name for name in top}
        if len(found) < len(top):
            raise ValueError(f"dataset.root={self.root}: has both val/ and validation/; keep one of them")
        if not found:
            return {"train": ""}
        if "train" not in found:
            raise ValueError(
                f"dataset.root={self.root}: has {', '.join(f'{name}/' for name in top)} and no train/"
            )
        return found

    def _classes(self, folder: str) -> list[str]:
        folders = folders_in(str(Path(self.root) / folder))
        names = sorted({class_name(name) for name in folders})
        if len(names) < len(folders):
            raise ValueError(
                f"{Path(self.root) / folder}: two folders have one name but for how an accent is stored: "
                f"{', '.join(sorted(name for name in folders if class_name(name) != name))}; rename them"
            )
        return names

    def _files(self, folder: str, tree: Tree) -> list[File]:
        """The files of a split, class by class; notes in `tree` what is missing or out of place."""
        where = Path(self.root) / folder
        labels = {class_name(name): number for number, name in enumerate(tree.classes)}
        folders = {class_name(name): name for name in folders_in(str(where))}
        extra = sorted(folders.keys() - labels.keys())
        if extra:
            source = "dataset.class_names" if self.class_names else "train/"
            raise ValueError(
                f"{where}: {_listed(extra)} not among the classes of {source}: "
                "remove the folder, or add the class"
            )
        tree.bad.extend((path, "lies in no class's folder") for path in loose_images(self.root, folder))
        found: list[File] = []
        for name, label in labels.items():
            below = "/".join(part for part in (folder, folders.get(name, "")) if part)
            files = images_below(self.root, below, label, tree.others) if name in folders else []
            if not files:
                tree.warnings.append(f"{folder or self.root}: no image of class {name!r}")
            found += files
        return found


def _listed(names: list[str]) -> str:
    return ("class " if len(names) == 1 else "classes ") + ", ".join(repr(name) for name in names)
