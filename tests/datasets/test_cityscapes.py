"""Cityscapes' layout, on small trees made here: ids, cities held out, bad files by name."""

import dataclasses
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from streets import SIDE, ids, image_of, mask_of, streets

from daso_bench.datasets.cityscapes import CLASSES, IDS, LABEL_OF, Cityscapes
from daso_bench.datasets.image_files import MaskedFiles, decode_mask
from daso_bench.datasets.listing import File
from daso_bench.datasets.pixels import BadImage
from daso_bench.datasets.transforms import UNLABELLED


def small(root: Path, **keys: Any) -> Cityscapes:
    return dataclasses.replace(Cityscapes(root=str(root), height=SIDE[0], width=SIDE[1]), **keys)


def split_of(dataset: Cityscapes, name: str) -> MaskedFiles:
    dataset.prepare()
    split = dataset.load().split(name)
    assert isinstance(split, MaskedFiles)
    return split


def refused(dataset: Cityscapes) -> str:
    with pytest.raises(ValueError, match=r"files are bad") as caught:
        dataset.prepare()
    return str(caught.value)


def test_every_id_becomes_its_class_of_the_public_mapping_or_unlabelled(tmp_path: Path) -> None:
    Image.fromarray(np.arange(34, dtype=np.uint8).reshape(2, 17)).save(tmp_path / "mask.png")
    labels = decode_mask(str(tmp_path / "mask.png"), LABEL_OF).flatten().tolist()
    names = [CLASSES[label] if label != UNLABELLED else "" for label in labels]
    assert names == [
        *("", "", "", "", "", "", "", "road", "sidewalk", "", "", "building", "wall", "fence", "", "", ""),
        *("pole", "", "traffic light", "traffic sign", "vegetation", "terrain", "sky", "person", "rider"),
        *("car", "truck", "bus", "", "", "train", "motorcycle", "bicycle"),
    ]
    assert Cityscapes.classes == len(CLASSES) == len(set(CLASSES)) == 19


def test_a_batch_holds_images_and_their_own_masks(tmp_path: Path) -> None:
    split = split_of(small(streets(tmp_path), mean=(0.0,) * 3, std=(1.0,) * 3), "test")
    images, masks = split.batch(torch.tensor([4, 0]))
    assert (images.dtype, masks.dtype) == (torch.float32, torch.int64)
    assert (images.shape, masks.shape) == ((2, 3, *SIDE), (2, *SIDE))
    for place, (city, number) in enumerate((("munster", 2), ("lindau", 0))):
        stored = np.array(Image.open(image_of(tmp_path, "val", city, number)))
        assert torch.equal((images[place] * 255).round(), torch.from_numpy(stored).permute(2, 0, 1).float())
        table = torch.full((34,), UNLABELLED)
        table[list(IDS)] = torch.arange(19)
        expected = table[torch.from_numpy(ids(f"val/{city}/{number}")).long()]
        assert torch.equal(masks[place], expected)
    empty = split.batch(torch.tensor([], dtype=torch.int64))
    assert [part.shape for part in empty] == [(0, 3, *SIDE), (0, *SIDE)]


def test_images_are_smoothed_and_masks_keep_their_labels_at_another_size(tmp_path: Path) -> None:
    full = split_of(small(streets(tmp_path)), "test")
    quarter = split_of(small(tmp_path, height=SIDE[0] // 4, width=SIDE[1] // 4), "test")
    (image, mask), (less, labels) = full.batch(torch.tensor([1])), quarter.batch(torch.tensor([1]))
    assert (less.shape, labels.shape) == ((1, 3, 4, 8), (1, 4, 8))
    assert torch.equal(labels[0], mask[0, 2::4, 2::4])  # blocks of four pixels: any of a block will do
    assert less.std() < 0.35 * image.std(), "noise is averaged away"


def test_validation_is_whole_cities_of_train_and_test_is_val(tmp_path: Path) -> None:
    dataset = small(streets(tmp_path))
    dataset.prepare()
    data = dataset.load()
    cities = {
        name: sorted({path.split("/")[2] for path in data.split(name).paths})  # pyright: ignore
        for name in ("train", "validation", "test")
    }
    assert cities == {
        "train": ["aachen", "bremen", "zurich"],
        "validation": ["ulm"],
        "test": ["lindau", "munster"],
    }
    assert [len(data.split(name)) for name in cities] == [7, 4, 5]
    assert dataset.info().samples == {"train": 7, "validation": 4, "test": 5}
    assert (data.name, data.classes, data.shape) == ("cityscapes", 19, (3, *SIDE))


def test_of_the_real_eighteen_cities_these_two_are_held_out() -> None:
    real = [
        *("aachen", "bochum", "bremen", "cologne", "darmstadt", "dusseldorf", "erfurt", "hamburg", "hanover"),
        *("jena", "krefeld", "monchengladbach", "strasbourg", "stuttgart", "tubingen", "ulm", "weimar"),
        "zurich",
    ]
    files = [File(f"leftImg8bit/train/{city}/{n}", 0, 1, 1) for city in real for n in range(3)]
    for some in (files, files[::-1], files[::2]):
        divided = Cityscapes().divide({"train": some, "test": []})
        held_out = {file.path.split("/")[2] for file in divided["validation"]}
        assert held_out == {"dusseldorf", "tubingen"}
        assert not {file.path.split("/")[2] for file in divided["train"]} & held_out


def test_a_mask_of_another_size_than_its_image_is_named_by_a_batch_too(tmp_path: Path) -> None:
    split = split_of(small(streets(tmp_path)), "test")
    Image.fromarray(ids("x", (16, 16))).save(mask_of(tmp_path, "val", "lindau", 0))
    with pytest.raises(BadImage, match=r"lindau_000000.*labelIds\.png: is 16 x 16, its image 32 x 16$"):
        split.batch(torch.tensor([0]))


def spoil(root: Path) -> dict[Path, str]:
    """Seven bad pairs; by the bad file, the reason."""
    aachen = [image_of(root, "train", "aachen", number) for number in range(3)]
    ulm, ulm_mask = image_of(root, "train", "ulm", 0), mask_of(root, "train", "ulm", 0)
    other, other_mask = image_of(root, "train", "ulm", 1), mask_of(root, "train", "ulm", 1)
    lindau, lindau_mask = image_of(root, "val", "lindau", 0), mask_of(root, "val", "lindau", 0)
    munster, munster_mask = image_of(root, "val", "munster", 1), mask_of(root, "val", "munster", 1)
    aachen[0].write_bytes(aachen[0].read_bytes()[:300])
    aachen[1].unlink()
    mask_of(root, "train", "aachen", 2).unlink()
    Image.fromarray(ids("x", (16, 16))).save(ulm_mask)
    Image.new("RGB", (SIDE[1], SIDE[0])).save(other_mask)
    lindau_mask.write_bytes(lindau_mask.read_bytes()[:120])
    unknown = ids("y")
    unknown[2:4, 5:9] = (40, 99, 200, 255)
    Image.fromarray(unknown).save(munster_mask)
    return {
        aachen[0]: "damaged or cut short .png file: ",
        mask_of(root, "train", "aachen", 1): "is the mask of no image",
        aachen[2]: "has no mask gtFine/train/aachen/aachen_000002_000019_gtFine_labelIds.png",
        ulm: f"its mask {ulm_mask.relative_to(root)}: is 16 x 16, its image 32 x 16",
        other: f"its mask {other_mask.relative_to(root)}: PNG of mode RGB (RGB): must hold one label id a "
        "pixel, as a PNG file of 8 bits (grey)",
        lindau: f"its mask {lindau_mask.relative_to(root)}: damaged or cut short .png file: ",
        munster: f"its mask {munster_mask.relative_to(root)}: label ids 40, 99, 200, 255: unknown; must be "
        "of 0 to 33",
    }


def test_every_bad_file_is_named_with_its_reason(tmp_path: Path) -> None:
    expected = spoil(streets(tmp_path))
    message = refused(small(tmp_path, check="decode"))
    assert message.startswith(f"dataset.root={tmp_path}: 7 of 16 files are bad; ")
    for path, reason in expected.items():
        assert f"  {path.relative_to(tmp_path)}: {reason}" in message
    assert len(message.splitlines()) == 1 + len(expected)


def test_headers_find_all_but_unknown_ids_and_the_batch_names_those(tmp_path: Path) -> None:
    spoil(streets(tmp_path))
    message = refused(small(tmp_path))
    assert "6 of 16 files are bad" in message
    assert "munster" not in message
    split = split_of(small(tmp_path, bad_files="skip"), "test")
    at = [number for number, path in enumerate(split.paths) if "munster_000001" in path]
    with pytest.raises(
        BadImage, match=r"munster_000001_.*labelIds\.png: label ids 40, 99, 200, 255: unknown"
    ):
        split.batch(torch.tensor(at))


@pytest.mark.parametrize("path_of", [image_of, mask_of])
def test_a_changed_size_or_time_of_an_image_or_a_mask_is_noticed(
    tmp_path: Path, path_of: Callable[..., Path]
) -> None:
    dataset = small(streets(tmp_path))
    path = path_of(tmp_path, "train", "ulm", 0)
    before = path.stat()
    trees = []
    for content, mtime_ns in ((b"", 0), (b"\0", 0), (b"", 1)):  # a byte more lies behind the end
        path.write_bytes(path.read_bytes() + content)
        os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns + mtime_ns))
        dataset.prepare()
        trees.append((dataset.about() or {})["tree"])
    assert len(set(trees)) == 3
    assert dataclasses.replace(dataset, height=8, augment="flip").manifest_file == dataset.manifest_file


def test_what_is_not_there_is_said_with_where_to_get_it(tmp_path: Path) -> None:
    streets(tmp_path / "one", {"train": {"ulm": 4}, "val": {"lindau": 1}})
    with pytest.raises(ValueError, match=r"validation split has no usable image .* two cities or more\)$"):
        small(tmp_path / "one").prepare()
    with pytest.raises(
        FileNotFoundError, match=r"no folder leftImg8bit/train/; register at cityscapes-dataset"
    ):
        small(tmp_path).prepare()
    streets(tmp_path)
    with pytest.raises(
        FileNotFoundError, match=r"not prepared with these keys .* prepare dataset=cityscapes "
    ):
        small(tmp_path).load()
