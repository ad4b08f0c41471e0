"""One set of loader workers for all virtual ranks."""

import multiprocessing
import os
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from fake_cuda import on_cpu  # pyright: ignore[reportMissingImports] (another folder of tests)
from PIL import Image
from pretend_device import DEVICE, pretend_device
from runs import PERIODS, Blobs, assert_same_models, config, simulated

from daso_bench.datasets import transforms
from daso_bench.datasets.image_files import ImageFiles
from daso_bench.datasets.imagefolder import ImageFolder
from daso_bench.datasets.pixels import BadImage
from daso_bench.models.small import SmallCNN
from daso_bench.runner.simulation import loader_pool
from daso_bench.runner.simulation.simulated_communicator import CPU
from daso_bench.runner.training import workload
from daso_bench.strategies.errors import MachineError


@pytest.fixture
def photographs(tmp_path: Path) -> ImageFolder:
    """Small JPEG files: 40 to train on, 12 in each of the other splits."""
    generator = np.random.default_rng(1)
    for split, number in (("train", 20), ("val", 6), ("test", 6)):
        for kind in ("a", "b"):
            folder = tmp_path / "photographs" / split / kind
            folder.mkdir(parents=True)
            for place in range(number):
                pixels = generator.integers(0, 256, (20, 30, 3), dtype=np.uint8)
                Image.fromarray(pixels).save(folder / f"{place}.jpg")
    root = str(tmp_path / "photographs")
    dataset = ImageFolder(root=root, resize=18, crop=16, augment="resized_crop_flip")
    dataset.prepare()
    return dataset


def configured(strategy: str, dataset: Any, workers: int | str, **train: Any) -> Any:
    return config(
        strategy,
        keys=PERIODS.get(strategy),
        model=SmallCNN(channels=[4]),
        dataset=dataset,
        launcher={"loader_workers": workers, "device_data_mib": 0},
        **{"global_batch_size": 9, "eval_every_samples": 20, "epochs": 3, **train},
    )


# `heterogeneous` changes the split of batches, so that what was made ahead is dropped.
@pytest.mark.parametrize("strategy", ["daso", "heterogeneous", "lasgd"])
@pytest.mark.parametrize("files", [True, False], ids=["files", "memory"])
def test_the_pool_changes_no_bit_of_a_run(photographs: ImageFolder, strategy: str, files: bool):
    dataset = photographs if files else Blobs(samples=48, augment="flip")
    runs = [
        simulated(
            configured(strategy, dataset, workers), step_time=lambda rank, samples: (1 + rank) * samples
        )
        for workers in (0, 2)
    ]
    assert_same_models(*runs)
    assert runs[0].metrics.rows[1:] == runs[1].metrics.rows[1:]
    assert [run.metrics.rows[0]["loader_workers"] for run in runs] == [0, 2]
    assert not multiprocessing.active_children()


def test_bytes_become_numbers_on_the_device(photographs: ImageFolder):
    wanted = simulated(configured("ddp", photographs, 0)).contexts
    with pretend_device():
        made = simulated(configured("ddp", photographs, 1), computes_on=DEVICE).contexts
        models = [on_cpu(context.replica.flat()) for context in made]
    assert all(torch.equal(mine, theirs.replica.flat()) for mine, theirs in zip(models, wanted, strict=True))


def test_one_pass_over_all_pixels_normalises_as_one_image_after_the_other():
    pixels = torch.randint(256, (5, 3, 4, 4), dtype=torch.uint8)
    mean, std = transforms.IMAGENET_MEAN, transforms.IMAGENET_STD
    wanted = transforms.normalise(pixels, mean=mean, std=std)
    with pretend_device():
        there = transforms.normalise(pixels.to(DEVICE), mean=mean, std=std)
        assert there.device == DEVICE
        assert torch.equal(there.cpu(), wanted)


def test_a_bad_file_is_told_in_its_own_words(photographs: ImageFolder):
    train = photographs.load().train
    assert isinstance(train, ImageFiles)
    Path(train.path(3)).write_bytes(b"no image")
    with pytest.raises(BadImage, match=r"\.jpg"):
        simulated(configured("ddp", photographs, 2))
    assert not multiprocessing.active_children()


def test_a_killed_process_ends_the_run_with_the_reason(photographs: ImageFolder):
    pool = loader_pool.pool_of(configured("ddp", photographs, 2), photographs.load(), CPU)
    assert pool is not None
    files = pool.reading(photographs.load()).test
    assert len(files.batch(torch.arange(5))[1]) == 5
    for child in multiprocessing.active_children():
        assert child.pid is not None
        os.kill(child.pid, signal.SIGKILL)
    with pytest.raises(RuntimeError, match=r"has ended.*loader_workers=2"):
        files.batch(torch.arange(5))
    pool.close()


def test_batches_that_shared_memory_does_not_hold_are_refused_or_not_made_ahead(
    photographs: ImageFolder, monkeypatch: pytest.MonkeyPatch
):
    """A batch of each of the 4 ranks: 3 samples of 3 x 16 x 16 bytes."""
    monkeypatch.setattr(loader_pool, "usable_cores", lambda: 4)
    data, gpu, of_all = photographs.load(), torch.device("cuda"), 4 * 3 * 3 * 16 * 16
    for room, ahead in ((of_all - 1, 0), (of_all, 1), (100 * of_all, 2)):
        for module in (loader_pool, workload):
            monkeypatch.setattr(module, "free_shared_memory", lambda room=room: room)
        if not ahead:
            with pytest.raises(MachineError, match=r"take launcher\.loader_workers=0"):
                loader_pool.pool_of(configured("ddp", photographs, 2), data, gpu)
        for workers in ("auto", 2) if ahead == 2 else ("auto",):
            pool = loader_pool.pool_of(configured("ddp", photographs, workers), data, gpu)
            # Of auto each has room for two batches of float32.
            assert (pool is None) == (ahead < 2)
            if pool is not None:
                assert (pool.workers, pool.ahead) == (3 if workers == "auto" else 2, ahead)
                pool.close()
