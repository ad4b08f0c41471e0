"""Cityscapes: photographs of streets of 50 cities with a label for each pixel, 2048 x 1024, from your copy.

Source: M. Cordts et al., The Cityscapes Dataset for Semantic Urban Scene Understanding, CVPR 2016,
arXiv:1604.01685; the mapping of ids to the 19 classes that are judged is that of its scripts (labels.py).
Registered users download it from cityscapes-dataset.com; nothing is downloaded here.

  root/leftImg8bit/{train,val}/CITY/*_leftImg8bit.png
  root/gtFine/{train,val}/CITY/*_gtFine_labelIds.png

The labels of its test images are not published, so val/ (500 images) is the test split here; the validation
split is whole cities held out of train, because images of one drive look alike.
"""

from collections import Counter
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

from torch import Tensor

from .dataset import DatasetInfo, at_least
from .image_files import MaskedFiles, decode_mask, other_size
from .listing import File, Tree, folders_in, images_below, place_in_draw
from .pixels import BadImage, PixelRules, decode, looks_whole, size_of
from .transforms import PAIR_RECIPES, UNLABELLED, PairChange, pair_recipe, resize_pair
from .verification import PreparedFolder

IMAGES, MASKS = "leftImg8bit", "gtFine"
IMAGE_END, MASK_END = "_leftImg8bit.png", "_gtFine_labelIds.png"
TRAIN, VAL = "train", "val"
SIZES = {TRAIN: 2975, VAL: 500}
CITIES_HELD_OUT = 0.1  # of train's, rounded, and at least one
CLASSES = (
    *("road", "sidewalk", "building", "wall", "fence", "pole", "traffic light", "traffic sign"),
    *("vegetation", "terrain", "sky", "person", "rider", "car", "truck", "bus", "train", "motorcycle"),
    "bicycle",
)
IDS = (7, 8, 11, 12, 13, 17, 19, 20, 21, 22, 23, 24, 25, 26, 27, 28, 31, 32, 33)  # of CLASSES, in the files
KNOWN_IDS = range(34)  # those without a class are not evaluated
LABEL_OF = dict.fromkeys(KNOWN_IDS, UNLABELLED) | {id_: number for number, id_ in enumerate(IDS)}
RULES = PixelRules(upright=False)


@dataclass(frozen=True, kw_only=True)
class Cityscapes(PreparedFolder):
    """Images [3, height, width] and masks [height, width] of 19 classes and 255.

    Further keys: see `PreparedFolder`; height, width: size in pixels to which images and masks are resized;
    augment: random changes of both (`transforms.pair_recipe`). Raises ValueError for a value out of range.
    """

    root: str = "cityscapes"
    height: int = 512
    width: int = 1024

    name: ClassVar[str] = "cityscapes"
    task: ClassVar[str] = "segmentation"
    classes: ClassVar[int] = len(CLASSES)
    held_out_of: ClassVar[str] = "two cities or more"
    size_keys = ("height", "width")

    def __post_init__(self) -> None:
        for key in ("height", "width"):
            at_least(key, getattr(self, key), 1)
        super().__post_init__()

    @property
    def rules(self) -> PixelRules:
        return RULES

    @property
    def transform(self) -> PairChange:
        return partial(resize_pair, height=self.height, width=self.width)

    @property
    def change(self) -> PairChange | None:
        grey = [round(255 * mean) for mean in self.mean]  # is 0 after normalisation
        return pair_recipe(self.augment, (self.height, self.width), grey, PAIR_RECIPES)

    @property
    def shape(self) -> tuple[int, int, int]:
        return 3, self.height, self.width

    def info(self) -> DatasetInfo:
        """See `Dataset.info`; the number of classes is always known."""
        return replace(super().info(), classes=self.classes)

    def tree(self) -> Tree:
        """See `PreparedFolder.tree`. A file's size and time are sums over image and mask, its label is 0."""
        tree = Tree(classes=CLASSES, splits={})
        for split, folder in (("train", TRAIN), ("test", VAL)):
            tree.splits[split] = self._files(folder, tree)
            count = len(tree.splits[split])
            if count != SIZES[folder]:
                tree.warnings.append(f"{folder}: {count} images, all of Cityscapes has {SIZES[folder]}")
        return tree

    def divide(self, splits: dict[str, list[File]]) -> dict[str, list[File]]:
        """See `PreparedFolder.divide`: validation is one in ten cities of train, drawn by their names."""
        cities = {_city(file.path) for file in splits["train"]}
        drawn = sorted(cities, key=place_in_draw)
        held_out = set(drawn[: max(1, round(CITIES_HELD_OUT * len(cities)))] if len(cities) > 1 else ())
        return {
            "train": [file for file in splits["train"] if _city(file.path) not in held_out],
            "validation": [file for file in splits["train"] if _city(file.path) in held_out],
            "test": splits["test"],
        }

    def look(self, path: str) -> None:
        """See `PreparedFolder.look`: of an image and its mask; label ids are read where check=decode."""
        image, mask = f"{self.root}/{path}", f"{self.root}/{mask_of(path)}"
        size = size_of(image)
        if self.check == "decode" or not looks_whole(image):
            decode(image, RULES)
        try:
            mask_size = size_of(mask, labels=True)
            if mask_size != size:
                raise BadImage(mask, other_size(mask_size, size))
            if self.check == "decode" or not looks_whole(mask):
                decode_mask(mask, LABEL_OF)
        except BadImage as error:  # a bad mask makes its image bad
            raise BadImage(image, f"its mask {mask_of(path)}: {error.reason}") from error

    def samples_of(self, labels: Tensor, common: dict[str, Any]) -> MaskedFiles:
        return MaskedFiles(mask_of=mask_of, label_of=LABEL_OF, **common)

    def parts(self, path: str) -> tuple[str, ...]:
        """See `PreparedFolder.parts`: the image and its mask."""
        return path, mask_of(path)

    def _files(self, split: str, tree: Tree) -> list[File]:
        """The images of train/ or val/ that have a mask; files without a counterpart are noted in `tree`."""
        files: list[File] = []
        images, masks = f"{IMAGES}/{split}", f"{MASKS}/{split}"
        for folder in (images, masks):
            if not (Path(self.root) / folder).is_dir():
                raise FileNotFoundError(
                    f"dataset.root={self.root}: no folder {folder}/; register at cityscapes-dataset.com, "
                    "fetch leftImg8bit_trainvaltest.zip and gtFine_trainvaltest.zip and unpack both there"
                )
        mask_files = {file.path: file for file in self._below(masks, MASK_END, Counter())}
        for image in self._below(images, IMAGE_END, tree.others):
            mask = mask_files.pop(mask_of(image.path), None)
            if mask is None:
                tree.bad.append((image.path, f"has no mask {mask_of(image.path)}"))
            else:
                size, mtime_ns = image.size + mask.size, image.mtime_ns + mask.mtime_ns
                files.append(File(image.path, 0, size, mtime_ns))
        tree.bad.extend((path, "is the mask of no image") for path in mask_files)
        return files

    def _below(self, folder: str, ending: str, others: Counter[str]) -> list[File]:
        """The files of the cities in `folder` whose names end so; `others` counts the rest."""
        files = [
            file
            for city in folders_in(f"{self.root}/{folder}")
            for file in images_below(self.root, f"{folder}/{city}", 0, others)
        ]
        others.update(f"not *{ending}" for file in files if not file.path.endswith(ending))
        return [file for file in files if file.path.endswith(ending)]


def mask_of(path: str) -> str:
    """Where the mask of the image at `path` is, both below the root."""
    return f"{MASKS}{path.removeprefix(IMAGES).removesuffix(IMAGE_END)}{MASK_END}"


def _city(path: str) -> str:
    return path.split("/")[2]
