"""Each rank's share of the samples and its times, from its own records; and whether devices are uneven."""

from collections.abc import Sequence
from typing import Any

import pytest

from daso_bench.runner.records.rows import TrainIntervalRow
from daso_bench.runner.report.data.load import Run
from daso_bench.runner.report.data.means import by_rank, shares, uneven_devices


def run(waiting_s: Sequence[Sequence[float]] = ((0,), (0,)), strategy: Any = None, device: Any = None) -> Run:
    """A run with `waiting_s[r]` of each 10 s interval of rank r, what its strategy recorded, its devices."""
    rows = [
        (rank, {"attempt": 1, "index": index, "parts_s": {"compute": 10 - waiting, "waiting": waiting}})
        for rank, intervals in enumerate(waiting_s)
        for index, waiting in enumerate(intervals)
    ]
    return Run(
        place="place",
        config={"cluster": {"device": device}},
        status={},
        summary={"strategy": strategy},
        rank_rows=[(rank, TrainIntervalRow.read({"train_s": 10.0, **row})) for rank, row in rows],
    )


def test_times_of_a_rank_are_sums_over_all_its_intervals() -> None:
    times = by_rank(run([[0, 0], [4, 6], *([number, number] for number in range(2, 11))]))
    assert times[1] == {"train_s": 20, "compute_s": 10, "waiting_s": 10}
    assert [rank["waiting_s"] for rank in times[2:]] == [2 * number for number in range(2, 11)], "by number"


@pytest.mark.parametrize(
    ("recorded", "expected"),
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
def test_shares_are_recorded_by_rank_or_not_at_all(recorded: Any, expected: list[float]) -> None:
    assert shares(run(strategy=recorded)) == expected


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
def test_devices_are_uneven_by_speed_kind_or_a_straggler(device: Any, expected: bool) -> None:
    assert uneven_devices(run(device=device)) is expected
