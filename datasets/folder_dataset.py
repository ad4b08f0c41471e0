"""Folders of image files with a label for each: what their data sets have in common."""

from abc import ABC
from dataclasses import dataclass
from typing import ClassVar

from .augmentation import Change, recipe
from .data import SPLITS, Data
from .image_files import ImageFiles
from .image_formats import looks_whole
from .pixels import PixelRules, decode, header
from .prepared_folder import PreparedFolder
from .transforms import IMAGENET_MEAN, IMAGENET_STD, CentreCrop, Normalise
from .tree import File, Tree, listed_classes


@dataclass(frozen=True, kw_only=True)
class FolderDataset(PreparedFolder, ABC):
    """Images [channels, crop, crop] in files below `root`.

    root, prepared, check, bad_files: see `PreparedFolder`; channels: 1 or 3; resize, crop: pixels
    of the shorter side, and of the square cut from the centre; background: under transparent pixels, white
    or black; augment: random changes of training images (`augmentation.recipe`), of the square but for
    resized_crop_flip, which cuts its own from the whole image; mean, std: per channel, on a scale of 0 to 1.
    Raises ValueError for a value out of range.
    """

    channels: int = 3
    resize: int = 256
    crop: int = 224
    background: str = "white"
    augment: str = "none"
    mean: tuple[float, ...] = IMAGENET_MEAN
    std: tuple[float, ...] = IMAGENET_STD

    upright: ClassVar[bool]  # whether EXIF orientation is applied
    held_out_of: ClassVar[str] = "classes with 3 images or more"
    loading_keys = frozenset(("root", "prepared", "resize", "crop", "background", "augment", "mean", "std"))

    def __post_init__(self) -> None:
        super().__post_init__()
        for made in ("rules", "transform", "normalise", "change"):
            getattr(self, made)  # each checks its values

    @property
    def rules(self) -> PixelRules:
        """From file to pixels."""
        return PixelRules(channels=self.channels, background=self.background, upright=self.upright)

    @property
    def transform(self) -> CentreCrop:
        """From pixels of any size to pixels of one size."""
        return CentreCrop(resize=self.resize, crop=self.crop)

    @property
    def change(self) -> Change | None:
        """From pixels of any size to pixels to train on; None where they are not changed at random."""
        change = recipe(self.augment, (self.crop, self.crop))
        if change is None or self.augment == "resized_crop_flip":
            return change
        from torchvision.transforms import v2  # `recipe` has imported it

        return v2.Compose([self.transform, change])

    @property
    def normalise(self) -> Normalise:
        """From pixels to what the model takes."""
        return Normalise(mean=self.mean, std=self.std, channels=self.channels)

    @property
    def shape(self) -> tuple[int, int, int]:
        """Of an image, [C, H, W]."""
        return self.channels, self.crop, self.crop

    def look(self, path: str) -> tuple[str, ...]:
        """See `PreparedFolder.look`."""
        file = f"{self.root}/{path}"
        about = header(file, self.rules)
        if self.check == "decode" or not looks_whole(file):
            decode(file, self.rules)
        return about.conversions

    def lacking(self, tree: Tree, usable: dict[str, list[File]], splits: dict[str, list[File]]) -> list[str]:
        """Classes that had files in a split, all of them bad, or that have none in one held out of train."""
        told = []
        for name, files in tree.splits.items():
            gone = {file.label for file in files} - {file.label for file in usable[name]}
            told += [f"{name}: every image of class {tree.classes[label]!r} is bad" for label in sorted(gone)]
        could = {file.label for file in usable["train"]}
        for name, files in splits.items():
            names = [tree.classes[label] for label in sorted(could - {file.label for file in files})]
            if name not in tree.splits and files and names:  # a split without any image is told as such
                told.append(f"{name} (held out of train): no image of {listed_classes(names)}")
        return told

    def load(self) -> Data:
        """See `Dataset.load`."""
        manifest = self.manifest()
        splits = {
            name: ImageFiles(
                root=self.root,
                shape=self.shape,
                paths=manifest.paths[name],
                labels=manifest.labels[name],
                rules=self.rules,
                transform=self.transform,
                normalise=self.normalise,
                change=self.change if name == "train" else None,
            )
            for name in SPLITS
        }
        return Data(
            name=self.name,
            classes=len(manifest.about["class_names"]),
            shape=self.shape,
            files=manifest.about["files"],
            **splits,
        )
