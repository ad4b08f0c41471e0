"""Each rank's share of the samples and its waiting: from its own records, shown where devices are uneven."""

import json
from pathlib import Path
from typing import Any

import pytest
from sharing import Make, compared, tables_of

from daso_bench.runner.report.build import report
from daso_bench.runner.report.data.load import load_run
from daso_bench.runner.report.data.rank_times import by_rank, is_uneven, shares
from daso_bench.runner.report.sections.runs import RunSection


def on(path: Path, waiting: list[list[float]], told: Any = None, device: Any = None) -> Path:
    """The run with `waiting[r]` seconds of each 10 s interval of rank r, its summary, its devices."""
    for rank, intervals in enumerate(waiting):
        with open(path / "ranks" / f"{rank}.jsonl", "w") as file:
            for number, waiting_s in enumerate(intervals):
                parts = {"compute": 10 - waiting_s, "waiting": waiting_s}
                row = {
                    "kind": "train_interval",
                    "attempt": 1,
                    "index": number,
                    "train_s": 10.0,
                    "parts_s": parts,
                }
                print(json.dumps(row), file=file)
    rows = [json.loads(line) for line in (path / "metrics.jsonl").read_text().splitlines()]
    rows[-1]["strategy"] = told
    (path / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    text = (path / "config.yaml").read_text()
    (path / "config.yaml").write_text(
        text.replace("cluster:\n", f"cluster:\n  device: {json.dumps(device)}\n")
    )
    return path


def test_waiting_is_a_ranks_own_over_all_its_intervals(make_run: Make, tmp_path: Path) -> None:
    intervals: list[list[float]] = [[0, 0], [4, 6], *([number, number] for number in range(2, 11))]
    run = load_run(on(make_run(tmp_path), intervals), "place")
    assert by_rank(run)[1] == {"train_s": 20, "compute_s": 10, "waiting_s": 10}
    assert [times["waiting_s"] for times in by_rank(run)[2:]] == [2 * n for n in range(2, 11)], "by number"


@pytest.mark.parametrize(
    ("told", "expected"),
    [
        ({"batches": [48, 16]}, [1.5, 0.5]),
        ({"samples_of_worker": [100, 300]}, [0.5, 1.5]),
        ({"samples_of_worker": [100]}, []),
        ({"batches": [0, 0]}, []),
        ({"batches": ["a", 1]}, []),
        ({}, []),
        ("text", []),
    ],
)
def test_shares_are_told_by_rank_or_not_at_all(
    make_run: Make, tmp_path: Path, told: Any, expected: list[float]
) -> None:
    assert shares(load_run(on(make_run(tmp_path), [[0], [0]], told), "place")) == expected


@pytest.mark.parametrize(
    ("device", "told", "expected"),
    [
        (None, None, False),
        ({"speeds": [1.0, 1.0]}, None, False),
        ({"speeds": [1.0, 0.25]}, None, True),
        ({"kind": ["cuda", "cpu"]}, None, True),
        ({"straggler": {"rank": 1}}, None, True),
        ({"straggler": {"rank": None}}, None, False),
        (None, {"batches": [32, 32]}, False),
        (None, {"batches": [40, 24]}, True),
    ],
)
def test_devices_or_shares_make_a_comparison_uneven(
    make_run: Make, tmp_path: Path, device: Any, told: Any, expected: bool
) -> None:
    on(make_run(tmp_path), [[0], [0]], told, device)
    assert is_uneven(compared(tmp_path)) is expected


def test_ranks_are_a_table_where_devices_are_uneven(make_run: Make, tmp_path: Path) -> None:
    on(make_run(tmp_path / "runs"), [[0], [6]], {"batches": [48, 16]})
    rows = tables_of(RunSection, [compared(tmp_path / "runs")])["ranks"]
    assert [(row["rank"], row["waiting_s"], row["times_equal_share"]) for row in rows] == [
        (0, 0, 1.5),
        (1, 6, 0.5),
    ]
    out = report(tmp_path / "runs", tmp_path / "out").parent
    assert (out / "ranks.csv").is_file()
    make_run(tmp_path / "even")
    even = report(tmp_path / "even", tmp_path / "other").parent
    assert not list(even.glob("ranks*"))
