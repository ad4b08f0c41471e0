"""A run on Cityscapes."""

import json
from pathlib import Path

from streets import streets  # pyright: ignore[reportMissingImports] (another folder of tests)

from daso_bench.runner.cli.main import run
from daso_bench.runner.records.json_lines import read_records

KEYS = ("dataset=cityscapes", "dataset.root=streets", "dataset.height=16", "dataset.width=32")


def test_a_run_trains_on_changed_pairs_and_ends_with_a_miou(here: Path) -> None:
    streets(here / "streets", {"train": {"a": 6, "b": 3, "c": 3}, "val": {"lindau": 4, "ulm": 2}})
    words = ["launcher=simulated", "cluster.nodes=2", "cluster.ranks_per_node=1", "model=small_fcn"]
    words += ["dataset.augment=scale_crop_flip_jitter", "train.epochs=1", "train.global_batch_size=4"]
    assert run([*words, *KEYS, "results_dir=results", "optimizer.lr=0.01"]) == 0
    (directory,) = Path("results/runs").iterdir()
    rows = [row for row in read_records(directory / "metrics.jsonl").rows if row["kind"] == "evaluation"]
    assert 0 <= rows[-1]["miou"] < 0.5
    assert rows[-1]["count"] == 6
    about = json.loads((directory / "data.json").read_text())
    assert about["samples"] == {"train": 9, "validation": 3, "test": 6}
