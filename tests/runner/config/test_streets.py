"""Cityscapes in runs: the same images and masks for any ranks and workers; prepare, train."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from streets import (  # pyright: ignore[reportMissingImports] (another folder of tests)
    image_of,
    mask_of,
    streets,
)
from torch import Tensor

from daso_bench.datasets.cityscapes import Cityscapes
from daso_bench.datasets.sampler import Sampler
from daso_bench.datasets.shapes import Shapes
from daso_bench.runner.cli.main import run
from daso_bench.runner.records.json_lines import read_records
from daso_bench.runner.training.batch_order import GlobalOrder
from daso_bench.runner.training.loader import Ahead, Loader
from daso_bench.strategies.progress import Progress

BATCH, EPOCHS = 8, 2


def batches(samples: Any, ranks: int, workers: int) -> list[tuple[Tensor, Tensor]]:
    """By step, the images and masks of all ranks, one rank's after the other's."""
    of_rank = []
    for rank in range(ranks):
        sampler = Sampler(len(samples), BATCH, ranks, seed=7)
        order, progress = GlobalOrder(sampler, rank), Progress(EPOCHS, sampler.steps_per_epoch)
        loader = (
            Ahead(samples, order, 3, workers=workers, prefetch=2, pin=False)
            if workers
            else Loader(samples, order, 3)
        )
        made = []
        for epoch in range(EPOCHS):
            for batch in range(sampler.steps_per_epoch):
                progress.epoch, progress.batch = epoch, batch
                made.append(loader.next(progress))
        loader.close()
        of_rank.append(made)
    return [
        (torch.cat([images for images, _ in step]), torch.cat([masks for _, masks in step]))
        for step in zip(*of_rank, strict=True)
    ]


@pytest.mark.parametrize("kind", ["cityscapes", "shapes"])
def test_neither_ranks_nor_workers_change_an_image_or_its_mask(kind: str, tmp_path: Path) -> None:
    dataset: Any = Shapes(samples=24, height=16, width=16, augment="scale_crop_flip")
    if kind == "cityscapes":
        streets(tmp_path, {"train": {"aachen": 12, "ulm": 2, "zurich": 12}, "val": {"lindau": 1}})
        dataset = Cityscapes(root=str(tmp_path), height=16, width=32, augment="scale_crop_flip_jitter")
    dataset.prepare()
    samples = dataset.load().train
    assert len(samples) == 24
    expected = batches(samples, 1, 0)
    assert len(expected) == 6
    assert all(not torch.equal(expected[0][part], expected[3][part]) for part in (0, 1)), "epochs differ"
    for ranks, workers in ((1, 2), (2, 0), (4, 0), (4, 2)):
        found = batches(samples, ranks, workers)
        for ours, theirs in zip(found, expected, strict=True):
            assert torch.equal(ours[0], theirs[0]), (ranks, workers)
            assert torch.equal(ours[1], theirs[1]), (ranks, workers)


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Noise of five cities in streets/ of the folder in which the user stands."""
    monkeypatch.chdir(tmp_path)
    return streets(tmp_path / "streets", {"train": {"a": 6, "b": 3, "c": 3}, "val": {"lindau": 4, "ulm": 2}})


KEYS = ("dataset=cityscapes", "dataset.root=streets", "dataset.height=16", "dataset.width=32")


def test_prepare_tells_of_the_splits_and_names_bad_pairs(
    root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["prepare", *KEYS]) == 0
    shown = capsys.readouterr().out
    assert "19 classes; images: 9 train, 3 validation (held out of train), 6 test" in shown
    mask_of(root, "val", "ulm", 1).unlink()
    with pytest.raises(
        ValueError, match=r"1 of 18 files are bad[^\n]*\n  leftImg8bit/val/ulm/ulm_000001_.*: has no"
    ):
        run(["prepare", *KEYS])
    assert run(["prepare", *KEYS, "dataset.bad_files=skip"]) == 0
    shown = capsys.readouterr().out
    assert "6 test" not in shown
    assert "left out, on all ranks: 1 bad file\n" in shown


def test_a_run_trains_on_changed_pairs_and_ends_with_a_miou(root: Path, tmp_path: Path) -> None:
    words = ["launcher=simulated", "cluster.nodes=2", "cluster.ranks_per_node=1", "model=small_fcn"]
    words += ["dataset.augment=scale_crop_flip_jitter", "train.epochs=1", "train.global_batch_size=4"]
    assert run([*words, *KEYS, "results_dir=results", "optimizer.lr=0.01"]) == 0
    (directory,) = (tmp_path / "results" / "runs").iterdir()
    rows = [row for row in read_records(directory / "metrics.jsonl").rows if row["kind"] == "evaluation"]
    assert 0 <= rows[-1]["miou"] < 0.5
    assert rows[-1]["count"] == 6
    about = json.loads((directory / "data.json").read_text())
    assert about["samples"] == {"train": 9, "validation": 3, "test": 6}


def test_an_image_that_turns_bad_ends_the_run_with_its_name(root: Path) -> None:
    assert run(["prepare", *KEYS]) == 0
    data = Cityscapes(root=str(root), height=16, width=32).load()
    image_of(root, "val", "ulm", 0).write_bytes(b"")
    with pytest.raises(ValueError, match=r"ulm_000000_000019_leftImg8bit\.png: empty \(0 bytes\)$"):
        data.test.batch(torch.arange(6))
