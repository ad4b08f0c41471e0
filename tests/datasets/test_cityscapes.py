"""Cityscapes' layout, on small trees made here: ids, cities held out, bad files by name."""

import dataclasses
import os
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from streets import CITIES, SIDE, ids, image_of, mask_of, pair, streets

from daso_bench.datasets.cityscapes import CLASSES, IDS, LABEL_OF, Cityscapes
from daso_bench.datasets.data import training_batch
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


def spoil(root: Path) -> dict[str, str]:
    """Seven bad pairs; by the bad file, the reason."""
    image = [image_of(root, "train", "aachen", n) for n in range(3)]
    mask = {
        key: mask_of(root, *key) for key in (("train", "ulm", 0), ("train", "ulm", 1), ("val", "lindau", 0))
    }
    image[0].write_bytes(image[0].read_bytes()[:300])
    image[1].unlink()
    mask_of(root, "train", "aachen", 2).unlink()
    Image.fromarray(ids("x", (16, 16))).save(mask["train", "ulm", 0])
    Image.new("RGB", (SIDE[1], SIDE[0])).save(mask["train", "ulm", 1])
    mask["val", "lindau", 0].write_bytes(mask["val", "lindau", 0].read_bytes()[:120])
    unknown = ids("y")
    unknown[2:4, 5:9] = (40, 99, 200, 255)
    Image.fromarray(unknown).save(mask_of(root, "val", "munster", 1))
    image_path, mask_path = "leftImg8bit/{0}/{1}/{1}_{2:06d}_000019", "gtFine/{0}/{1}/{1}_{2:06d}_000019"
    mask_end = "_gtFine_labelIds.png"
    names = {
        ("train", "aachen", 0): "damaged or cut short .png file: ",
        ("train", "aachen", 2): f"has no mask {mask_path.format('train', 'aachen', 2)}{mask_end}",
        ("train", "ulm", 0): f"its mask {mask_path.format('train', 'ulm', 0)}{mask_end}: "
        "is 16 x 16, its image 32 x 16",
        ("train", "ulm", 1): f"its mask {mask_path.format('train', 'ulm', 1)}{mask_end}: "
        "PNG of mode RGB (RGB): must hold one label id a pixel, as a PNG file of 8 bits (grey)",
        ("val", "lindau", 0): f"its mask {mask_path.format('val', 'lindau', 0)}{mask_end}: "
        "damaged or cut short .png file: ",
        ("val", "munster", 1): f"its mask {mask_path.format('val', 'munster', 1)}{mask_end}: "
        "label ids 40, 99, 200, 255: unknown; must be of 0 to 33",
    }
    expected = {image_path.format(*key) + "_leftImg8bit.png": reason for key, reason in names.items()}
    return {mask_path.format("train", "aachen", 1) + mask_end: "is the mask of no image", **expected}


def test_every_bad_file_is_named_with_its_reason(tmp_path: Path) -> None:
    expected = spoil(streets(tmp_path))
    message = refused(small(tmp_path, check="decode"))
    assert message.startswith(f"dataset.root={tmp_path}: 7 of 16 files are bad; ")
    for path, reason in expected.items():
        assert f"  {path}: {reason}" in message
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


def test_it_is_looked_at_once_and_again_when_an_image_or_a_mask_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dataset = small(streets(tmp_path))
    looked: list[str] = []
    real = Cityscapes.look
    monkeypatch.setattr(Cityscapes, "look", lambda self, path: looked.append(path) or real(self, path))
    images = sum(sum(counts.values()) for counts in CITIES.values())
    for dataset_now in (dataset, dataset, dataclasses.replace(dataset, height=8, augment="flip")):
        dataset_now.prepare()
        assert len(looked) == images
    pair(tmp_path, "train", "ulm", 9)
    dataset.prepare()
    assert len(looked) == 2 * images + 1
    for number, path_of in enumerate((image_of, mask_of)):
        path = path_of(tmp_path, "train", "ulm", 9)
        before = path.stat()
        path.write_bytes(path.read_bytes() + b"\0")  # another size, behind the end
        os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
        dataset.prepare()
        assert len(looked) == (3 + 2 * number) * (images + 1) - 1
        os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns + 1))
        dataset.prepare()
        assert len(looked) == (4 + 2 * number) * (images + 1) - 1


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


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"height": 0}, r"^dataset\.height=0: must be >= 1$"),
        (
            {"mean": (0.5,)},
            r"^dataset\.mean=\[0\.5\]: must be a finite number for each of 3 .* 0 to 1$",
        ),
    ],
)
def test_bad_values_are_refused(keys: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Cityscapes(**keys)


def test_a_loaders_process_makes_the_same_changes_of_its_copy(tmp_path: Path) -> None:
    split = split_of(small(streets(tmp_path), augment="scale_crop_flip_jitter"), "train")
    indices = torch.arange(len(split))
    images, masks = training_batch(split, indices, 5)
    copied = pickle.loads(pickle.dumps(split))
    again, masks_again = training_batch(copied, indices.flip(0), 5)
    assert torch.equal(again.flip(0), images)
    assert torch.equal(masks_again.flip(0), masks)
    assert not torch.equal(images, split.batch(indices)[0])
    assert not torch.equal(masks, split.batch(indices)[1])
    assert masks.unique().tolist()[-1] == UNLABELLED
    assert training_batch(copied, indices[:0], 5)[1].shape == (0, *SIDE)
    test = split_of(small(tmp_path, augment="scale_crop_flip_jitter"), "test")
    assert torch.equal(training_batch(test, indices[:3], 5)[0], test.batch(indices[:3])[0])
