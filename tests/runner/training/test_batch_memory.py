"""Batches that travel as bytes through shared memory are those made on demand, and stay what they are."""

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from streets import streets  # pyright: ignore[reportMissingImports] (another folder of tests)
from torch import Tensor

from daso_bench.datasets.cityscapes import Cityscapes
from daso_bench.datasets.data import Samples
from daso_bench.datasets.image_files import FilesOnDisk, ImageFiles, MaskedFiles
from daso_bench.datasets.imagefolder import ImageFolder
from daso_bench.datasets.sampler import Sampler
from daso_bench.runner.training.batch_order import GlobalOrder
from daso_bench.runner.training.loader import MARGIN, Ahead, BatchMemory, Loader
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
    batches = []
    try:
        for step in range(EPOCHS * sampler.steps_per_epoch):
            progress.epoch, progress.batch = divmod(step, sampler.steps_per_epoch)
            if step == change_at:
                order.shares = Shares((6, 2))
                loader.restart()
            batches.append(loader.next(progress))
    finally:
        loader.close()
    return batches


def ahead(*args: Any) -> Ahead:
    return Ahead(*args, workers=2, prefetch=2, pin=False)


@pytest.mark.parametrize("change_at", [None, 5])
def test_batches_are_those_made_on_demand_and_stay_so(photographs: ImageFiles, change_at: int | None) -> None:
    expected, batches = walk(photographs, Loader, change_at), walk(photographs, ahead, change_at)
    assert len({len(labels) for _, labels in expected}) >= 2, "the last batch is longer"
    for ours, theirs in zip(batches, expected, strict=True):
        assert torch.equal(ours[0], theirs[0])
        assert torch.equal(ours[1], theirs[1])
        assert ours[0].is_contiguous()


@pytest.mark.parametrize("room", [1, 8], ids=["too small", "fits"])
@pytest.mark.parametrize("masks", [False, True], ids=["labels", "masks"])
def test_what_is_put_into_a_slot_comes_back_and_what_does_not_fit_is_pickled(room: int, masks: bool) -> None:
    images = torch.randint(256, (5 + MARGIN, 3, 2, 2), dtype=torch.uint8)
    targets = torch.randint(256, (5 + MARGIN, 2, 2), dtype=torch.uint8) if masks else torch.arange(5 + MARGIN)
    memory = BatchMemory(2, 5, 12 + 4 * masks) if room > 1 else BatchMemory(2, 1, 1)
    sent = pickle.loads(pickle.dumps(memory.put(1, images, targets)))
    memory.put(0, torch.zeros_like(images), torch.zeros_like(targets))  # another slot
    assert (sent[1] is None) == (room > 1)
    pixels, labels = memory.get(1, sent)
    assert torch.equal(pixels, images)
    assert (labels.dtype, labels.tolist()) == (torch.int64, targets.tolist())


def test_photographs_and_masks_go_through_the_slots(tmp_path: Path) -> None:
    """What travels beside them is a few words, whatever the images' size; the rank has the same batches."""
    streets(tmp_path, {"train": {"aachen": 12, "ulm": 12}, "val": {"lindau": 1}})
    dataset = Cityscapes(root=str(tmp_path), height=64, width=96, augment="scale_crop_flip")
    dataset.prepare()
    samples = dataset.load().train
    assert isinstance(samples, MaskedFiles)
    assert isinstance(samples, FilesOnDisk)
    pixels, masks = samples.changed(torch.arange(3), 5)
    assert samples.changed(torch.arange(0), 5)[1].dtype == torch.uint8
    memory = BatchMemory(1, 3, pixels[0].numel() + samples.target_bytes)
    assert len(pickle.dumps(memory.put(0, pixels, masks))) < 2000 < pixels.nbytes + masks.nbytes
    expected, batches = walk(samples, Loader), walk(samples, ahead)
    for ours, theirs in zip(batches, expected, strict=True):
        assert torch.equal(ours[0], theirs[0])
        assert ours[1].dtype == theirs[1].dtype == torch.int64
        assert torch.equal(ours[1], theirs[1])


def test_pinned_batches_are_finished_by_the_workers(photographs: ImageFiles) -> None:
    sampler = Sampler(len(photographs), BATCH, 2, seed=7)
    order, progress = GlobalOrder(sampler, 0), Progress(EPOCHS, sampler.steps_per_epoch)
    loader = Ahead(photographs, order, 3, workers=1, prefetch=1, pin=True)
    loader._upcoming = order.upcoming(progress)
    loader._share_memory(progress)
    assert loader._fetch.memory is None
    loader._open.set()
    place, _, batch = loader._fetch[next(iter(loader))]
    assert place == (0, 0)
    assert isinstance(batch, tuple)
    assert isinstance(batch[0], torch.Tensor)
    assert batch[0].dtype == torch.float32
