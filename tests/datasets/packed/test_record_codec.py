"""What comes back from records is, bit for bit, the batch by indices: images in memory, files, made ones."""

from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor

from daso_bench.datasets.data import Samples, Split, training_batch
from daso_bench.datasets.image_files import ImageFiles
from daso_bench.datasets.packed.feeder import Part
from daso_bench.datasets.packed.record_codec import RecordCodec, codec_of
from daso_bench.datasets.pixels import BadImage, PixelRules
from daso_bench.datasets.shapes import Shapes
from daso_bench.datasets.synthetic import Synthetic
from daso_bench.datasets.transforms import IMAGENET_MEAN, IMAGENET_STD, centre_crop, normalise, recipe

INDICES = torch.tensor([5, 0, 3, 3])


def in_memory(kind: torch.dtype) -> Split:
    generator = torch.Generator().manual_seed(0)
    images = torch.randint(256, (8, 3, 6, 6), generator=generator).to(kind)
    mean, std = (100.0, 120.0, 90.0), (60.0, 50.0, 70.0)
    augment = recipe("crop_flip", (6, 6))
    return Split(images=images, labels=torch.arange(8) % 3, mean=mean, std=std, augment=augment)


def in_files(folder: Path, augment: str = "resized_crop_flip") -> ImageFiles:
    generator = np.random.default_rng(0)
    paths = [f"{number}.{'png' if number % 2 else 'jpg'}" for number in range(8)]
    for number, path in enumerate(paths):
        pixels = generator.integers(0, 256, (20 + number, 24, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(folder / path)
    return ImageFiles(
        root=str(folder),
        shape=(3, 8, 8),
        paths=paths,
        labels=torch.arange(8) % 3,
        rules=PixelRules(),
        transform=partial(centre_crop, resize=10, crop=8),
        normalise=partial(normalise, mean=IMAGENET_MEAN, std=IMAGENET_STD),
        change=recipe(augment, (8, 8)),
    )


def part_of(codec: RecordCodec, indices: Tensor) -> Part:
    """A part that holds these samples, as a reader would have given it."""
    records = [codec.sample(index)[0] for index in indices.tolist()]
    labels = np.array([codec.sample(index)[1] for index in indices.tolist()], dtype=np.int64)
    content = np.frombuffer(b"".join(records), dtype=np.uint8).copy()
    ends = np.cumsum([len(record) for record in records], dtype=np.int64)
    return Part(number=0, step=0, records=indices.numpy(), labels=labels, ends=ends, content=content)


CASES: dict[str, Callable[[Path], Samples]] = {
    "uint8": lambda folder: in_memory(torch.uint8),
    "float32": lambda folder: in_memory(torch.float32),
    "files changed at random": in_files,
    "files": lambda folder: in_files(folder, "none"),
    "made": lambda folder: Synthetic(samples=8, height=9, width=7).load().train,
}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("indices", [INDICES, INDICES[:0]], ids=["some", "none"])
def test_images_from_records_are_those_by_indices(case: str, indices: Tensor, tmp_path: Path) -> None:
    samples = CASES[case](tmp_path)
    codec = codec_of(samples)
    part = part_of(codec, indices)
    before = part.content.copy()
    images, labels = training_batch(samples, indices, key=7)
    assert torch.equal(codec.images(part, indices, 7), images)
    assert part.labels.tolist() == labels.tolist()
    assert (part.content == before).all(), "what other ranks see was overwritten"
    if codec.record_bytes is not None:
        assert len(part.content) == codec.record_bytes * len(indices)
    if len(indices) and case in ("uint8", "float32", "files changed at random"):
        assert not torch.equal(codec.images(part, indices, 8), images), "images are changed at random"


def test_another_image_label_or_file_makes_another_digest(tmp_path: Path) -> None:
    split = in_memory(torch.uint8)
    digests = {codec_of(split).digest("")}
    for changed in ("images", "labels"):
        values = {"images": split.images.clone(), "labels": split.labels.clone()}
        values[changed].view(-1)[3] += 1
        other = Split(mean=split.mean, std=split.std, augment=None, **values)
        digests.add(codec_of(other).digest(""))
    assert len(digests) == 3
    unchanged = Split(images=split.images, labels=split.labels, mean=(0, 0, 0), std=(1, 1, 1))
    assert codec_of(unchanged).digest("") in digests, "what becomes of the images is not in the file"
    files = codec_of(in_files(tmp_path))
    assert files.digest("a tree") != files.digest("another tree")


def test_a_record_that_is_no_image_is_named_by_its_file(tmp_path: Path) -> None:
    files = in_files(tmp_path)
    (tmp_path / "3.png").write_bytes(b"no image at all")
    codec = codec_of(files)
    part = part_of(codec, torch.tensor([3]))
    with pytest.raises(BadImage, match=r"3\.png: no image \(starts with 6e 6f 20"):
        codec.images(part, torch.tensor([3]), 0)


class OwnChanges:
    """Samples of a user's own class, changed at random."""

    def __len__(self) -> int:
        return 3

    def batch(self, indices: Tensor) -> tuple[Tensor, Tensor]:
        """As a `Split`."""
        return torch.zeros(len(indices), 1, 2, 2), torch.zeros(len(indices), dtype=torch.int64)

    augmented = batch


def test_masks_and_random_changes_of_a_users_own_class_cannot_be_packed() -> None:
    with pytest.raises(ValueError, match=r"^has a label for each pixel, and a packed file has one an image"):
        codec_of(Shapes(samples=4, validation_samples=2, test_samples=2).load().train)
    with pytest.raises(ValueError, match=r"^changes its images at random in a way of its own"):
        codec_of(OwnChanges())
