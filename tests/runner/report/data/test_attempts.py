"""The machines of all attempts of a run, as one: nothing that a later attempt recorded is overlooked."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from daso_bench.runner.report.claims.fairness import fairness, forbidding
from daso_bench.runner.report.data.load import load_run, load_runs
from daso_bench.runner.report.data.run_files import merged
from daso_bench.strategies.errors import ConfigError

Make = Callable[..., Path]


def again(path: Path, number: int, **changes: object) -> None:
    """A later attempt whose environment differs in `changes`."""
    known = json.loads((path / "environment.json").read_text())
    (path / f"environment_{number}.json").write_text(json.dumps(known | changes))


def test_what_is_equal_stays_as_it_is():
    assert merged([{"cores": 2, "ranks": [{"rank": 0}]}] * 3) == {"cores": 2, "ranks": [{"rank": 0}]}


def test_what_differs_is_told_in_the_order_of_the_attempts():
    assert merged([{"torch": "2.1", "cores": 2}, {"torch": "2.2", "cores": 2}]) == {
        "torch": "2.1, then 2.2",
        "cores": 2,
    }
    assert merged(["a", "b", "a"]) == "a, then b"
    assert merged([{"commit": "1a"}, {}]) == {"commit": "1a, then nothing"}


def test_ranks_are_compared_rank_by_rank_and_lists_of_another_length_as_a_whole():
    one, other = [{"rank": 0, "host": "a"}], [{"rank": 0, "host": "b"}]
    assert merged([one, other]) == [{"rank": 0, "host": "a, then b"}]
    assert merged([[1], [1, 2]]) == "[1], then [1, 2]"


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


def test_a_folder_without_runs_is_refused_by_the_command_that_was_asked(tmp_path: Path):
    with pytest.raises(ConfigError, match=r"claims .*: no run directory in it"):
        load_runs(tmp_path, "claims")
    with pytest.raises(ConfigError, match=r"report .*: no such folder"):
        load_runs(tmp_path / "none", "report")
