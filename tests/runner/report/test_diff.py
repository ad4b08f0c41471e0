"""What changed between two sets of results."""

from collections.abc import Callable
from pathlib import Path

import pytest

from daso_bench.runner.records.json_lines import read_json, write_json
from daso_bench.runner.report.data.load import load_runs
from daso_bench.runner.report.diff import diff, show_diff
from daso_bench.strategies.errors import ConfigError

Make = Callable[..., Path]


def test_numbers_of_both_stand_side_by_side_with_a_ratio_and_its_interval(make_run: Make, tmp_path: Path):
    for seed, factor in enumerate((1.0, 1.02, 0.98)):
        make_run(tmp_path / "a", seed=seed, train_s=100 * factor)
        make_run(tmp_path / "b", seed=seed, train_s=50 * factor, study="again")
    (arm,) = diff(load_runs(tmp_path / "a", "test"), load_runs(tmp_path / "b", "test")).arms
    assert arm.runs == (3, 3)
    assert arm.configuration == []
    numbers = {number.name: number for number in arm.numbers}
    assert numbers["time of all work"].a.startswith("399.9")
    assert numbers["time of all work"].b.startswith("200")
    assert numbers["time of all work"].ratio.startswith("0.500 [0.4")
    assert numbers["samples per second"].ratio.startswith("2.000 [1.9")
    assert numbers["final accuracy"].ratio == "1.000"


def test_of_single_runs_their_own_numbers_stand_there_and_no_interval(make_run: Make, tmp_path: Path):
    make_run(tmp_path / "a", train_s=100)
    make_run(tmp_path / "b", train_s=50, accuracies=(0.60, 0.76, 0.74, 0.39))
    (arm,) = diff(load_runs(tmp_path / "a", "test"), load_runs(tmp_path / "b", "test")).arms
    numbers = {number.name: (number.a, number.b, number.ratio) for number in arm.numbers}
    assert numbers["time of all work"] == ("400.0 s", "200.0 s", "0.500")
    assert numbers["final accuracy"] == ("0.7800", "0.3900", "0.500")
    assert numbers["bytes between nodes"] == ("6.00 MB", "6.00 MB", "1.000")


def test_settings_and_environment_that_changed_are_named_with_both_values(make_run: Make, tmp_path: Path):
    make_run(tmp_path / "a", "daso")
    other = make_run(tmp_path / "b", "daso", settings={"sync_every": 8, "new_key": "x"})
    environment = read_json(other / "environment.json") | {"torch": "3.0"}
    write_json(other / "environment.json", environment)
    found = diff(load_runs(tmp_path / "a", "test"), load_runs(tmp_path / "b", "test"))
    (arm,) = found.arms
    told = {change.key: (change.a, change.b) for change in arm.configuration}
    assert told["strategy.sync_every"] == ("4", "8")
    assert told["strategy.new_key"] == ("not there", "x")
    assert [(change.key, change.b) for change in found.environment] == [("torch", "3.0")]


def test_arms_that_one_set_alone_has_are_named(make_run: Make, tmp_path: Path):
    make_run(tmp_path / "a", "ddp")
    make_run(tmp_path / "b", "ddp")
    make_run(tmp_path / "b", "lasgd")
    found = diff(load_runs(tmp_path / "a", "test"), load_runs(tmp_path / "b", "test"))
    assert found.only[0] == []
    assert [place[-1] for place in found.only[1]] == ["lasgd"]


def test_it_is_printed_whole(make_run: Make, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    make_run(tmp_path / "a", "daso")
    make_run(tmp_path / "b", "daso", settings={"sync_every": 8})
    assert show_diff(tmp_path / "a", tmp_path / "b") == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "strategy.sync_every 4 -> 8" in said
    assert "environment: nothing changed" in said


def test_a_folder_without_runs_is_refused(make_run: Make, tmp_path: Path):
    make_run(tmp_path / "a")
    (tmp_path / "b").mkdir()
    with pytest.raises(ConfigError, match="no run directory"):
        show_diff(tmp_path / "a", tmp_path / "b")
