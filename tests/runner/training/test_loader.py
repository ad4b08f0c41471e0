"""Batches made ahead are those made on demand, in shared memory too; workers pause and end with a rank."""

import multiprocessing
import os
import pickle
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from real_runs import alive, finished, history
from runs import Blobs, config
from streets import streets  # pyright: ignore[reportMissingImports] (another folder of tests)
from torch import Tensor

from daso_bench.datasets.cityscapes import Cityscapes
from daso_bench.datasets.data import Split
from daso_bench.datasets.image_files import FilesOnDisk, ImageFiles, MaskedFiles
from daso_bench.datasets.imagefolder import ImageFolder
from daso_bench.datasets.pixels import BadImage
from daso_bench.datasets.sampler import Sampler
from daso_bench.datasets.transforms import recipe
from daso_bench.runner.config.cluster import LinkConfig, LinksConfig
from daso_bench.runner.config.launchers import LocalConfig
from daso_bench.runner.config.run_config import RunConfig
from daso_bench.runner.training import workload
from daso_bench.runner.training.batch_order import BatchOrder, GlobalOrder, IndependentOrder
from daso_bench.runner.training.loader import MARGIN, Ahead, BatchMemory, Loader
from daso_bench.strategies.base import Shares
from daso_bench.strategies.progress import Progress
from daso_bench.strategies.topology import Topology

SAMPLES, BATCH, EPOCHS = 50, 16, 3


def samples() -> Split:
    images = torch.arange(SAMPLES * 12, dtype=torch.float32).view(SAMPLES, 1, 3, 4)
    return Split(
        images=images, labels=torch.arange(SAMPLES), mean=(0.0,), std=(1.0,), augment=recipe("flip", (3, 4))
    )


def global_order(samples: int = SAMPLES, batch: int = BATCH) -> tuple[GlobalOrder, Progress]:
    """Of rank 0 of two."""
    sampler = Sampler(samples, batch, 2, seed=7)
    return GlobalOrder(sampler, 0), Progress(EPOCHS, sampler.steps_per_epoch)


def independent_order() -> tuple[IndependentOrder, Progress]:
    order = IndependentOrder(Sampler(SAMPLES, BATCH, 2, 0), Topology.of((1, 1)), 1, 7)
    return order, Progress(EPOCHS, 3)


class KeepsALock(Exception):
    """An error that cannot go to another process."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.lock = threading.Lock()


@contextmanager
def ahead(order: BatchOrder, workers: int = 2, data: Any = None) -> Iterator[Ahead]:
    loader = Ahead(data or samples(), order, 3, workers=workers, prefetch=2, pin=False)
    try:
        yield loader
    finally:
        loader.close()


def walk(order: BatchOrder, progress: Progress, steps: int) -> Iterator[int]:
    """The steps of a run, as the train loop goes through them."""
    for step in range(steps):
        yield step
        if order.advance(progress) and isinstance(order, GlobalOrder):
            progress.epoch += 1
            progress.batch = 0


def batches(order: BatchOrder, progress: Progress, loader: Loader, steps: int) -> list[tuple[Tensor, Tensor]]:
    return [loader.next(progress) for _ in walk(order, progress, steps)]


def assert_same(result: list[tuple[Tensor, Tensor]], expected: list[tuple[Tensor, Tensor]]) -> None:
    assert len(result) == len(expected)
    for ours, theirs in zip(result, expected, strict=True):
        assert torch.equal(ours[0], theirs[0])
        assert torch.equal(ours[1], theirs[1])


@pytest.mark.parametrize("make", [global_order, independent_order])
def test_batches_made_ahead_are_those_made_on_demand(make: Any) -> None:
    direct_feed, direct_progress = make()
    steps = EPOCHS * 3
    expected = batches(direct_feed, direct_progress, Loader(samples(), direct_feed, 3), steps)
    order, progress = make()
    with ahead(order) as loader:
        assert_same(batches(order, progress, loader, steps), expected)
    assert len({labels.numpy().tobytes() for _, labels in expected}) > steps // 2, "batches differ"


def test_the_ranks_own_random_numbers_are_left_alone() -> None:
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    order, progress = global_order()
    with ahead(order, workers=1) as loader:
        batches(order, progress, loader, 5)
    assert torch.equal(torch.rand(3), expected)


class CountedSamples:
    """Samples that note when they are made."""

    def __init__(self, made: Any) -> None:
        self.made = made

    def __len__(self) -> int:
        return SAMPLES

    def batch(self, indices: Tensor) -> tuple[Tensor, Tensor]:
        with self.made.get_lock():
            self.made.value += 1
        return indices.float(), indices


def settled(value: Any, seconds: float = 0.3) -> int:
    """What a number is once it has stood still so long."""
    seen, since = value.value, time.monotonic()
    while time.monotonic() - since < seconds:
        time.sleep(0.01)
        if value.value != seen:
            seen, since = value.value, time.monotonic()
    return seen


def test_workers_stand_still_while_training_pauses() -> None:
    order, progress = global_order()
    made = multiprocessing.Value("i", 0)
    with ahead(order, workers=1, data=CountedSamples(made)) as loader:
        steps = walk(order, progress, 12)
        next(steps)
        loader.next(progress)
        assert settled(made) == 1 + 2, "the one that was asked for, and two ahead"
        loader.on_pause()
        next(steps)
        loader.next(progress)  # makes room for one more
        assert settled(made) == 3
        loader.on_train_start()
        assert settled(made) == 4


def _rank_that_is_killed(pids: Any) -> None:
    order, progress = global_order()
    loader = Ahead(samples(), order, 3, workers=2, prefetch=2, pin=False)
    loader.next(progress)
    loader.on_pause()
    pids.send([child.pid for child in multiprocessing.active_children()])
    signal.pause()


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="reads /proc")
def test_a_killed_rank_takes_its_workers_with_it_even_while_they_stand_still() -> None:
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=_rank_that_is_killed, args=(theirs,))
    process.start()
    assert ours.poll(60)
    workers = ours.recv()
    assert len(workers) == 2
    process.kill()
    process.join()
    until = time.monotonic() + 10
    while any(alive(pid) for pid in workers):
        assert time.monotonic() < until, "workers outlived their rank"
        time.sleep(0.05)


class Spoiled:
    """Samples of which none can be decoded."""

    shape, classes, class_names = (1, 3, 4), 2, None

    def __init__(self, error: Exception) -> None:
        self.error = error

    def __len__(self) -> int:
        return SAMPLES

    def batch(self, indices: Tensor) -> Any:
        raise self.error


@pytest.mark.parametrize(
    ("error", "type_"),
    [(BadImage("cats/5.png", "no image (starts with 78)"), BadImage), (KeepsALock("so"), RuntimeError)],
)
def test_what_is_wrong_with_a_sample_is_told_in_its_own_words(error: Exception, type_: type) -> None:
    order, progress = global_order()
    with ahead(order, workers=1, data=Spoiled(error)) as loader, pytest.raises(type_) as error_info:
        loader.next(progress)
    assert str(error) in str(error_info.value)
    assert "PyTorch" not in str(error_info.value)
    assert "Caught" not in str(error_info.value)


def test_a_signal_to_the_whole_group_ends_no_worker(tmp_path: Path) -> None:
    """The rank gets it too: it saves what it has, for which it may need batches."""
    order, progress = global_order()
    with ahead(order) as loader:
        for _ in walk(order, progress, 2):  # one of each worker: both have begun
            loader.next(progress)
        workers = multiprocessing.active_children()
        assert len(workers) == 2
        for worker in workers:
            assert worker.pid is not None
            os.kill(worker.pid, signal.SIGTERM)
        for _ in walk(order, progress, 6):
            assert loader.next(progress)[0].shape[1:] == (1, 3, 4)
        assert all(worker.is_alive() for worker in workers)


def trained(cfg: RunConfig) -> list[tuple[Any, ...]]:
    return history(finished(cfg, workers=cfg.launcher.asked_workers)[0])


def test_workers_change_no_bit_of_a_run(tmp_path: Path) -> None:
    """Evaluations without a checkpoint beside them, further apart than batches are made ahead."""
    blobs = Blobs(augment="flip")
    same: dict[str, Any] = {"ranks": [2], "epochs": 3, "checkpoint_every_samples": None}
    plain = config(**same, results=tmp_path / "plain", dataset=blobs)
    workers = config(**same, results=tmp_path / "workers", dataset=blobs, launcher={"loader_workers": 1})
    result = trained(plain)
    assert len(result) == 3
    steps = len(plain.dataset.load().train) // plain.train.global_batch_size
    assert steps > 2 * workers.launcher.prefetch_batches
    assert trained(workers) == result


@pytest.mark.parametrize(
    ("augment", "device", "launcher", "threads", "mib", "workers"),
    [
        ("flip", "cuda", {}, 8, 1000, 7),
        ("flip", "cuda", {}, 64, 1000, 16),
        ("flip", "cuda", {}, 1, 1000, 0),
        ("flip", "cuda", {}, 8, 6, 3),  # each makes 16 batches of 32 KiB
        ("none", "cuda", {}, 8, 1000, 0),  # nothing to be made
        ("flip", "cpu", {}, 8, 1000, 0),
        ("flip", "cuda", {"network": "modelled"}, 8, 1000, 0),
        ("flip", "cpu", {"loader_workers": 2}, 8, 0, 2),
        ("flip", "cuda", {"loader_workers": 0}, 8, 1000, 0),
    ],
)
def test_workers_of_auto_are_what_feeds_a_gpu(
    augment: str,
    device: str,
    launcher: dict[str, Any],
    threads: int,
    mib: int,
    workers: int,
    monkeypatch: pytest.MonkeyPatch,
):
    usage = SimpleNamespace(free=mib * 2**20)
    monkeypatch.setattr(workload, "shutil", SimpleNamespace(disk_usage=lambda folder: usage))
    cfg = config(ranks=[2], global_batch_size=1024, dataset=Blobs(samples=2048, augment=augment))
    links = LinksConfig(inter=LinkConfig(rate_gbit=1.0)) if "network" in launcher else LinksConfig()
    keys = LocalConfig(**{"prefetch_batches": 16, **launcher})
    cfg = replace(cfg, cluster=replace(cfg.cluster, links=links), launcher=keys)
    data = cfg.dataset.load()
    room = workload.free_shared_memory() // 2  # of two ranks
    assert workload.loader_workers(cfg, data, torch.device(device), cores=threads, room=room) == workers


# ------------------------------------------------------------------ batches in shared memory


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


def on_demand_and_ahead(samples: Any, change_at: int | None = None) -> list[list[tuple[Tensor, Tensor]]]:
    """All batches of rank 0; from step `change_at` on it has three quarters of each."""

    def loaded(order: GlobalOrder, progress: Progress, loader: Loader) -> list[tuple[Tensor, Tensor]]:
        batches = []
        for step in walk(order, progress, EPOCHS * progress.steps_per_epoch):
            if step == change_at:
                order.shares = Shares((6, 2))
                loader.restart()
            batches.append(loader.next(progress))
        return batches

    order, progress = global_order(len(samples), 8)
    expected = loaded(order, progress, Loader(samples, order, 3))
    order, progress = global_order(len(samples), 8)
    with ahead(order, data=samples) as loader:
        return [expected, loaded(order, progress, loader)]


@pytest.mark.parametrize("change_at", [None, 5])
def test_batches_are_those_made_on_demand_and_stay_so(photographs: ImageFiles, change_at: int | None) -> None:
    expected, ours = on_demand_and_ahead(photographs, change_at)
    assert len({len(labels) for _, labels in expected}) >= 2, "the last batch is longer"
    assert_same(ours, expected)
    assert all(images.is_contiguous() for images, _ in ours)


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
    expected, ours = on_demand_and_ahead(samples)
    assert_same(ours, expected)
    assert {labels.dtype for _, labels in [*ours, *expected]} == {torch.int64}


def test_pinned_batches_are_finished_by_the_workers(photographs: ImageFiles) -> None:
    order, progress = global_order(len(photographs), 8)
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


def test_an_epoch_of_independent_batches_has_as_many_samples_as_one_of_common_batches():
    sampler = Sampler(10, 4, 2, 0, short_batch="drop")  # 8 of 10 samples
    order, progress = IndependentOrder(sampler, Topology.of((1, 1)), 1, 7), Progress(3, 2)
    for epoch in range(3):
        progress.samples = 8 * (epoch + 1) - 1
        assert order.advance(progress) == 0
        progress.samples += 1
        assert order.advance(progress) == 1
        progress.epoch += 1
