"""What a run has learnt: the numbers that must not depend on how often it was interrupted."""

from pathlib import Path
from typing import Any

import torch

from daso_bench.runner.records.json_lines import read_records, surviving

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
    first, second = (_model(run) for run in (one, other))
    return first.keys() == second.keys() and all(torch.equal(first[name], second[name]) for name in first)


def _model(run: Path) -> dict[str, torch.Tensor]:
    found = torch.load(run / "checkpoints" / "final" / "model.pt", weights_only=True)
    tensors: dict[str, torch.Tensor] = {}

    def collect(value: Any, name: str) -> None:
        if isinstance(value, torch.Tensor):
            tensors[name] = value
        elif isinstance(value, dict):
            for key, item in value.items():
                collect(item, f"{name}/{key}")

    collect(found, "")
    return tensors
