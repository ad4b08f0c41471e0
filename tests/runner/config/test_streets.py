"""Cityscapes in runs: the same images and masks for any ranks and workers; prepare, train."""

import json
from pathlib import Path

import pytest
from streets import (  # pyright: ignore[reportMissingImports] (another folder of tests)
    mask_of,
    streets,
)

from daso_bench.runner.cli.main import run
from daso_bench.runner.records.json_lines import read_records


@pytest.fixture
def root(here: Path) -> Path:
    """Noise of five cities in streets/ of the working directory."""
    return streets(here / "streets", {"train": {"a": 6, "b": 3, "c": 3}, "val": {"lindau": 4, "ulm": 2}})


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


def test_a_run_trains_on_changed_pairs_and_ends_with_a_miou(root: Path) -> None:
    words = ["launcher=simulated", "cluster.nodes=2", "cluster.ranks_per_node=1", "model=small_fcn"]
    words += ["dataset.augment=scale_crop_flip_jitter", "train.epochs=1", "train.global_batch_size=4"]
    assert run([*words, *KEYS, "results_dir=results", "optimizer.lr=0.01"]) == 0
    (directory,) = Path("results/runs").iterdir()
    rows = [row for row in read_records(directory / "metrics.jsonl").rows if row["kind"] == "evaluation"]
    assert 0 <= rows[-1]["miou"] < 0.5
    assert rows[-1]["count"] == 6
    about = json.loads((directory / "data.json").read_text())
    assert about["samples"] == {"train": 9, "validation": 3, "test": 6}
