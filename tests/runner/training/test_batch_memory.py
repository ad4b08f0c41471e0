"""Batches that travel as bytes through shared memory are those made on demand, and stay what they are."""

import pickle
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from streets import streets  # pyright: ignore[reportMissingImports] (another folder of tests)
from torch import Tensor

from daso_bench.datasets.cityscapes import Cityscapes
from daso_bench.datasets.data import Compact, Samples
from daso_bench.datasets.image_files import ImageFiles, MaskedFiles
from daso_bench.datasets.imagefolder import ImageFolder
from daso_bench.datasets.sampler import Sampler
from daso_bench.datasets.transforms import normalise
from daso_bench.runner.training.batch_order import GlobalOrder
from daso_bench.runner.training.loader import MARGIN, Ahead, BatchMemory, Direct, Loader, Unfinished
from daso_bench.strategies.base import Shares
from daso_bench.strategies.progress import Progress

BATCH, EPOCHS = 8, 3


@pytest.fixture
def photographs(tmp_path: Path) -> ImageFiles:
    """34 small JPEG files to train on."""
    generator = np.random.default_rng(1)
    for kind in ("a", "b"):
        (tmp_path / "train" / kind).mkdir(parents=True)
        for number in range(19):
            pixels = generator.integers(0, 256, (20, 30, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(tmp_path / "train" / kind / f"{number}.jpg")
    dataset = ImageFolder(root=str(tmp_path), resize=18, crop=16, augment="resized_crop_flip", holdout=0.05)
    dataset.prepare()
    samples = dataset.load().train
    assert isinstance(samples, ImageFiles)
    assert len(samples) == 34
    return samples


def walk(samples: Samples, make: Any, change_at: int | None = None) -> list[tuple[Tensor, Tensor]]:
    """All batches of rank 0 of two; from step `change_at` on it has three quarters of each."""
    sampler = Sampler(len(samples), BATCH, 2, seed=7)
    order, progress = GlobalOrder(sampler, 0), Progress(EPOCHS, sampler.steps_per_epoch)
    loader: Loader = make(samples, order, 3)
    found = []
    try:
        for step in range(EPOCHS * sampler.steps_per_epoch):
            progress.epoch, progress.batch = divmod(step, sampler.steps_per_epoch)
            if step == change_at:
                order.shares = Shares((6, 2))
                loader.restart()
            found.append(loader.next(progress))
    finally:
        loader.close()
    return found


def ahead(*args: Any) -> Ahead:
    return Ahead(*args, workers=2, prefetch=2, pin=False)


@pytest.mark.parametrize("change_at", [None, 5])
def test_batches_are_those_made_on_demand_and_stay_so(photographs: ImageFiles, change_at: int | None) -> None:
    expected, found = walk(photographs, Direct, change_at), walk(photographs, ahead, change_at)
    assert len({len(labels) for _, labels in expected}) >= 2, "the last batch is longer"
    for ours, theirs in zip(found, expected, strict=True):
        assert torch.equal(ours[0], theirs[0])
        assert torch.equal(ours[1], theirs[1])
        assert ours[0].is_contiguous()


def test_slots_come_back(photographs: ImageFiles) -> None:
    loaders = []

    def kept(*args: Any) -> Ahead:
        loaders.append(ahead(*args))
        return loaders[0]

    seen = []
    real = Ahead.next

    def noted(self: Ahead, progress: Progress) -> Any:
        images = real(self, progress)
        memory = self._fetch.memory
        assert memory is not None
        seen.append(len(memory.free))
        return images

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(Ahead, "next", noted)
        walk(photographs, kept)
    assert seen[:4] == [1] * 4, "four of five are with the workers"


def test_memory_gives_back_what_was_put_there() -> None:
    memory = BatchMemory(3, 4, 12 + 4)
    assert memory.free == [0, 1, 2]
    images = torch.arange(4 * 12, dtype=torch.uint8).view(4, 3, 2, 2)
    masks = torch.arange(200, 216, dtype=torch.uint8).view(4, 2, 2)
    shapes = [images.shape, masks.shape]
    assert memory.put(1, [images, masks])
    assert memory.put(2, [images + 100, masks + 20])
    for slot, added in ((1, (0, 0)), (2, (100, 20))):
        for found, put, more in zip(memory.get(slot, shapes), (images, masks), added, strict=True):
            assert torch.equal(found, put + more)
    assert memory.put(0, [images[:0], masks[:0]])
    longer = [torch.zeros(4 + MARGIN, *shape, dtype=torch.uint8) for shape in ((3, 2, 2), (2, 2))]
    assert memory.put(0, longer)
    longer[1] = torch.zeros(5 + MARGIN, 2, 2, dtype=torch.uint8)
    assert not memory.put(1, longer)
    assert torch.equal(memory.get(1, shapes)[0], images), "what does not fit is not put there"


def test_what_has_no_room_travels_by_itself() -> None:
    to_input = partial(normalise, mean=(0.5,) * 3, std=(0.25,) * 3)
    images, labels = torch.randint(256, (5, 3, 2, 2), dtype=torch.uint8), torch.arange(5)
    masks = torch.randint(256, (5, 2, 2), dtype=torch.uint8)
    memory, small = BatchMemory(2, 8, 16), BatchMemory(2, 1, 1)
    for targets in (labels, masks):
        for into in (memory, small):
            sent = pickle.dumps(Unfinished(images, targets, to_input, into, 1))
            made = pickle.loads(sent).finished(into)
            memory.put(1, [torch.zeros_like(images), torch.zeros_like(masks)])
            assert torch.equal(made[0], to_input(images))
            assert (made[1].dtype, made[1].tolist()) == (torch.int64, targets.tolist())


def test_photographs_and_masks_go_through_the_slots(tmp_path: Path) -> None:
    """What travels beside them is a few words, whatever the images' size; the rank has the same batches."""
    streets(tmp_path, {"train": {"aachen": 12, "ulm": 12}, "val": {"lindau": 1}})
    dataset = Cityscapes(root=str(tmp_path), height=64, width=96, augment="scale_crop_flip")
    dataset.prepare()
    samples = dataset.load().train
    assert isinstance(samples, MaskedFiles)
    assert isinstance(samples, Compact)
    pixels, masks = samples.changed(torch.arange(3), 5)
    assert (pixels.dtype, masks.dtype) == (torch.uint8, torch.uint8)
    assert samples.changed(torch.arange(0), 5)[1].dtype == torch.uint8
    memory = BatchMemory(1, 3, pixels[0].numel() + samples.target_bytes)
    sent = pickle.dumps(Unfinished(pixels, masks, samples.normalise, memory, 0))
    assert len(sent) < 2000 < pixels.nbytes + masks.nbytes
    expected, found = walk(samples, Direct), walk(samples, ahead)
    for ours, theirs in zip(found, expected, strict=True):
        assert torch.equal(ours[0], theirs[0])
        assert ours[1].dtype == theirs[1].dtype == torch.int64
        assert torch.equal(ours[1], theirs[1])


def test_pinned_batches_are_finished_by_the_workers(photographs: ImageFiles) -> None:
    sampler = Sampler(len(photographs), BATCH, 2, seed=7)
    order, progress = GlobalOrder(sampler, 0), Progress(EPOCHS, sampler.steps_per_epoch)
    loader = Ahead(photographs, order, 3, workers=1, prefetch=1, pin=True)
    loader._upcoming.progress = progress
    loader._share_memory()
    assert loader._fetch.memory is None
    loader._open.set()
    place, _, batch = loader._fetch[next(iter(loader._upcoming))]
    assert place == (0, 0)
    assert isinstance(batch, tuple)
    assert batch[0].dtype == torch.float32
