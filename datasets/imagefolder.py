"""A folder of images with a subfolder for each class; splits are folders, or are held out of train.

  root/train/CLASS/...  root/validation/CLASS/... (or val)  root/test/CLASS/...
  root/CLASS/...                                            all of it is train

A missing split is held out of train: the share `holdout` of each class, rounded, at least one image of a
class that has three or more. The classes are the folders of train (or `class_names`), in the order of their
code points, for all splits.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from .data import SPLITS
from .prepared_folder import SHOWN, FolderDataset
from .tree import (
    File,
    Tree,
    class_name,
    folders_in,
    hold_out,
    images_below,
    listed_classes,
    loose_images,
    share_of_class,
)

FOLDERS = {"train": "train", "validation": "validation", "val": "validation", "test": "test"}
# Names of splits in other tools, in any case. Read as classes, or ignored, they would be another data set.
LIKE_SPLITS = frozenset(("train", "training", "val", "valid", "validation", "dev", "test", "testing"))


@dataclass(frozen=True, kw_only=True)
class ImageFolder(FolderDataset):
    """Images [channels, crop, crop]; each folder is a class.

    class_names: the classes in the order of their numbers, empty for the folders of train; holdout: share of
    train for a missing split; split_seed: seed of that draw (another value is another data set).
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
        if len({class_name(name) for name in self.class_names}) != len(self.class_names):
            raise ValueError(f"dataset.class_names={list(self.class_names)}: each must be there once")

    def tree(self) -> Tree:
        """See `PreparedFolder.tree`."""
        folders = self._split_folders()
        names = self.class_names or tuple(self._classes(folders["train"]))
        if len(names) < 2:
            raise ValueError(
                f"dataset.root={self.root}: {len(names)} classes; there must be 2 or more folders of images "
                "in train/, or in the root where there is no train/ (docs/data.md shows the layouts)"
            )
        tree = Tree(classes=names, splits={})
        for split in SPLITS:
            if split in folders:
                tree.splits[split] = self._files(folders[split], tree)
        if folders["train"]:
            tree.warnings.extend(self._beside())
        return tree

    def divide(self, splits: dict[str, list[File]]) -> dict[str, list[File]]:
        """See `PreparedFolder.divide`."""
        missing = [name for name in ("validation", "test") if name not in splits]
        drawn = hold_out(
            splits["train"],
            share_of_class(self.holdout),
            seed=self.split_seed,
            names=missing,
            drawn_as=lambda path: path.removeprefix("train/"),  # class and path in its folder
        )
        return {**splits, **drawn}

    def _split_folders(self) -> dict[str, str]:
        """The folder of each split below the root, empty for the root itself."""
        root = Path(self.root)
        if not root.is_dir():
            what = "is no folder" if root.exists() else "no such folder"
            raise FileNotFoundError(f"dataset.root={self.root}: {what}")
        folders = folders_in(self.root)
        top = [name for name in folders if name in FOLDERS]
        odd = [f"{name}/" for name in folders if name.lower() in LIKE_SPLITS and name not in FOLDERS]
        if odd:
            raise ValueError(
                f"dataset.root={self.root}: has {', '.join(odd)}; folders of splits must be named train/, "
                "validation/ or val/, and test/: rename them, or put them into train/ if they are classes"
            )
        splits = {FOLDERS[name]: name for name in top}
        if len(splits) < len(top):
            raise ValueError(f"dataset.root={self.root}: has both val/ and validation/; keep one of them")
        if not splits:
            return {"train": ""}
        if "train" not in splits:
            raise ValueError(
                f"dataset.root={self.root}: has {', '.join(f'{name}/' for name in top)} and no train/"
            )
        return splits

    def _beside(self) -> list[str]:
        """Warnings about files and folders next to train/ that are ignored."""
        ignored = [f"{name}/" for name in folders_in(self.root) if name not in FOLDERS]
        images = loose_images(self.root, "")
        if images:
            more = [f"and {len(images) - SHOWN} more"] if len(images) > SHOWN else []
            names = ", ".join([*images[:SHOWN], *more])
            ignored.append(f"{len(images)} image{'s' * (len(images) > 1)} ({names})")
        return [f"beside train/ and not looked at: {name}" for name in ignored]

    def _classes(self, folder: str) -> dict[str, str]:
        """The folder of each class in `folder`, in the order of their code points."""
        where = Path(self.root) / folder
        names = folders_in(str(where))
        classes = {class_name(name): name for name in names}
        if len(classes) < len(names):
            raise ValueError(
                f"{where}: two folders have one name but for how an accent is stored: "
                f"{', '.join(sorted(name for name in names if class_name(name) != name))}; rename them"
            )
        return dict(sorted(classes.items()))

    def _files(self, folder: str, tree: Tree) -> list[File]:
        """The files of a split, class by class; notes missing and misplaced files in `tree`."""
        where = Path(self.root) / folder
        labels = {class_name(name): number for number, name in enumerate(tree.classes)}
        folders = self._classes(folder)
        extra = sorted(folders.keys() - labels.keys())
        if extra:
            source = "dataset.class_names" if self.class_names else "train/"
            raise ValueError(
                f"{where}: {listed_classes(extra)} not among the classes of {source}: "
                "remove the folder, or add the class"
            )
        tree.bad.extend((path, "lies in no class's folder") for path in loose_images(self.root, folder))
        split: list[File] = []
        for name, label in labels.items():
            files: list[File] = []
            if name in folders:
                below = "/".join(part for part in (folder, folders[name]) if part)
                files = images_below(self.root, below, label, tree.others)
                tree.warnings.extend(self._splits_inside(below))
            if not files:
                tree.warnings.append(f"{folder or self.root}: no image of class {name!r}")
            split += files
        return split

    def _splits_inside(self, below: str) -> list[str]:
        """A warning if the folder of a class has folders named like splits."""
        inside = folders_in(str(Path(self.root) / below))
        named = ", ".join(f"{below}/{name}/" for name in inside if name.lower() in LIKE_SPLITS)
        return [f"{named}: named like splits, but read as parts of one class"] if named else []
