"""What a run has learnt: the numbers that must not depend on how often it was interrupted."""

from pathlib import Path
from typing import Any

import torch

from daso_bench.runner.records.json_lines import read_records, surviving
from daso_bench.runner.training import checkpoint

# Everything else in these rows is a time, or tells which attempt it was.
_NUMBERS = (
    "kind", "step", "epoch", "samples", "index", "learning_rate", "train_loss", "loss", "accuracy", "correct",
    "count", "strategy",
)  # fmt: skip


def history(run: Path) -> list[dict[str, Any]]:
    """The rows of every epoch and evaluation that survived, without times."""
    rows = surviving(read_records(run / "metrics.jsonl").rows)
    return [
        {key: row[key] for key in _NUMBERS if key in row}
        for row in rows
        if row["kind"] in ("epoch", "evaluation")
    ]


def starts(run: Path) -> list[dict[str, Any]]:
    """The rows with which attempts began."""
    return [row for row in read_records(run / "metrics.jsonl").rows if row["kind"] == "start"]


def same_model(one: Path, other: Path) -> bool:
    """Whether two finished runs ended with the same parameters, to the last bit."""
    first, second = (checkpoint.read(run / "checkpoints/final/model.pt")["model"] for run in (one, other))
    return first.keys() == second.keys() and all(torch.equal(first[name], second[name]) for name in first)
