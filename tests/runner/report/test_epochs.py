"""Distance between ranks and staleness, as each strategy records them."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from sharing import compared, tables_of

from daso_bench.runner.report.data.load import load_run
from daso_bench.runner.report.sections.epochs import EpochSection, spread, staleness

Make = Callable[..., Path]
DASO = {"phase": "cycling", "waited_batches": [1, 2, 3], "spread": 0.04}
LOCAL = {"period": 8, "spread": 0.02, "largest_spread": 0.5}
LASGD = {
    "staleness_steps": {"mean": 2.5, "max": 4},
    "detail": [{"spread": [0.5, 0.1]}, {"spread": [0.3, 0.2]}],
}


def said(path: Path, *epochs: Any, summary: Any = None) -> Path:
    """The run with an epoch's row for each of `epochs`, and with what its strategy sums up."""
    rows = [json.loads(line) for line in (path / "metrics.jsonl").read_text().splitlines()]
    for row in rows:
        if row["kind"] == "summary" and summary is not None:
            row["strategy"] = summary
    told = [
        {"kind": "epoch", "attempt": 1, "step": 10 * n, "epoch": n, "samples": 1000 * n, "strategy": one}
        for n, one in enumerate(epochs)
    ]
    (path / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in [*told, *rows]))
    return path


@pytest.mark.parametrize(
    ("told", "expected"),
    [(DASO, 0.04), (LOCAL, 0.02), (LASGD, 0.3), ({}, None), ({"spread": None}, None), ({"detail": []}, None)],
)
def test_the_spread_is_that_before_the_last_average(told: Any, expected: float | None) -> None:
    assert spread(told) == expected


@pytest.mark.parametrize(
    "told", [None, "text", [], {"spread": "wide"}, {"detail": "many"}, {"detail": [1, {}]}]
)
def test_what_a_plug_in_records_differently_is_no_spread_and_no_staleness(told: Any) -> None:
    assert (spread(told), staleness(told)) == (None, None)


def test_staleness_is_the_strategys_own_or_that_of_all_its_sums() -> None:
    assert staleness(DASO) == (2, 3)
    assert staleness(LASGD) == (2.5, 4)


def test_only_rank_0s_surviving_epochs_count(make_run: Make, tmp_path: Path) -> None:
    path = said(make_run(tmp_path, "daso"), DASO, DASO)
    with open(path / "metrics.jsonl", "a") as file:
        print(json.dumps({"kind": "start", "attempt": 2, "step": 0, "samples": 0, "train_s": 0.0}), file=file)
    run = load_run(path, "place")
    assert [row.epoch for row in run.epochs] == [0]


def test_epochs_are_a_table(make_run: Make, tmp_path: Path) -> None:
    said(make_run(tmp_path, "daso"), DASO)
    (row,) = tables_of(EpochSection, [compared(tmp_path)])["epochs"]
    assert (row["epoch"], row["phase"], row["spread"]) == (0, "cycling", 0.04)
    assert (row["staleness_steps_mean"], row["staleness_steps_max"]) == (2, 3)
