"""Each rank's times, from its own records; and whether devices are uneven."""

import json
from pathlib import Path
from typing import Any

import pytest
from sharing import Make

from daso_bench.runner.report.claims.bounds import differ
from daso_bench.runner.report.data.load import load_run
from daso_bench.runner.report.data.means import by_rank


def on(path: Path, waiting: list[list[float]], told: Any = None, device: Any = None) -> Path:
    """The run with `waiting[r]` seconds of each 10 s interval of rank r, its summary, its devices."""
    for file in (path / "ranks").iterdir():
        file.unlink()
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


def test_times_of_a_rank_are_sums_over_all_its_intervals(make_run: Make, tmp_path: Path) -> None:
    intervals: list[list[float]] = [[0, 0], [4, 6], *([number, number] for number in range(2, 11))]
    times = by_rank(load_run(on(make_run(tmp_path), intervals), "place"))
    assert times[1] == {"train_s": 20, "compute_s": 10, "waiting_s": 10}
    assert [rank["waiting_s"] for rank in times[2:]] == [2 * number for number in range(2, 11)], "by number"


@pytest.mark.parametrize(
    ("device", "expected"),
    [
        (None, False),
        ({"speeds": [1.0, 1.0]}, False),
        ({"speeds": [1.0, 0.25]}, True),
        ({"kind": ["cuda", "cpu"]}, True),
        ({"straggler": {"rank": 1}}, True),
        ({"straggler": {"rank": None}}, False),
    ],
)
def test_devices_are_uneven_by_speed_kind_or_a_straggler(
    make_run: Make, tmp_path: Path, device: Any, expected: bool
) -> None:
    run = load_run(on(make_run(tmp_path), [[0], [0]], None, device), "place")
    assert differ(run) is expected
