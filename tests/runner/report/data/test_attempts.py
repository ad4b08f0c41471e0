"""The machines of all attempts of a run, as one: nothing that a later attempt recorded is overlooked."""

import json
from pathlib import Path
from typing import Any

import pytest
from sharing import Make

from daso_bench.runner.report.claims.fairness import fairness, forbidding
from daso_bench.runner.report.data.load import load_run, load_runs, merged


def again(path: Path, number: int, **changes: object) -> None:
    """A later attempt whose environment differs in `changes`."""
    known = json.loads((path / "environment.json").read_text())
    (path / f"environment_{number}.json").write_text(json.dumps(known | changes))


@pytest.mark.parametrize(
    ("attempts", "expected"),
    [
        ([{"cores": 2, "ranks": [{"rank": 0}]}] * 3, {"cores": 2, "ranks": [{"rank": 0}]}),
        ([{"torch": "1", "cores": 2}, {"torch": "2", "cores": 2}], {"torch": "1, then 2", "cores": 2}),
        (["a", "b", "a"], "a, then b"),
        ([{"commit": "1a"}, {}], {"commit": "1a, then nothing"}),
        ([[{"rank": 0, "host": "a"}], [{"rank": 0, "host": "b"}]], [{"rank": 0, "host": "a, then b"}]),
        ([[1], [1, 2]], "[1], then [1, 2]"),
    ],
    ids=["equal", "one key", "texts", "missing", "rank by rank", "other length"],
)
def test_what_differs_between_attempts_is_told_in_their_order(attempts: list[Any], expected: Any):
    assert merged(attempts) == expected


def test_a_run_that_was_resumed_has_the_environments_of_all_its_attempts(make_run: Make, tmp_path: Path):
    path = make_run(tmp_path)
    for number in (2, 10):
        again(path, number, torch=f"2.14.{number}")
    (path / "environment_copy.json").write_text("{")
    run = load_run(path, "place")
    assert run.environment["torch"] == "2.14.1, then 2.14.2, then 2.14.10"
    assert run.damage == []


def test_a_later_environment_that_is_damaged_is_named(make_run: Make, tmp_path: Path):
    path = make_run(tmp_path)
    (path / "environment_2.json").write_text("{")
    run = load_run(path, "place")
    assert run.damage == ["place/environment_2.json: cannot be read, it is damaged"]
    assert run.environment["torch"] == "2.14.1"


def test_another_commit_in_a_later_attempt_is_no_fair_comparison(make_run: Make, tmp_path: Path):
    paths = [make_run(tmp_path, name, seed) for name in ("ddp", "daso") for seed in range(3)]
    again(paths[-1], 2, commit="5d6e7f8")
    runs = load_runs(tmp_path, "test")
    sides = [[run for run in runs if run.strategy == name] for name in ("ddp", "daso")]
    (row,) = [row for row in forbidding(fairness(*sides)) if row.quantity == "commit"]
    assert row.arm == "1a2b3c4; 1a2b3c4, then 5d6e7f8"
