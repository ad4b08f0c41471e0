"""What changed between two sets of results."""

from pathlib import Path

import pytest
from sharing import Make

from daso_bench.runner.records.json_lines import read_json, write_json
from daso_bench.runner.report.data.load import load_runs
from daso_bench.runner.report.diff import arms_of, show_diff
from daso_bench.runner.report.diff import numbers as numbers_of


def numbers(root: Path) -> dict[str, tuple[str, ...]]:
    (a,), (b,) = (arms_of(load_runs(root / name, "test")).values() for name in ("a", "b"))
    return {number[0]: number for number in numbers_of(a, b)}


def test_means_of_both_stand_side_by_side_with_their_ratio(make_run: Make, tmp_path: Path):
    for seed, factor in enumerate((1.0, 1.02, 0.98)):
        make_run(tmp_path / "a", seed=seed, train_s=100 * factor)
        make_run(tmp_path / "b", seed=seed, train_s=50 * factor, study="again")
    _, a, b, ratio = numbers(tmp_path)["time of all work"]
    assert (a[:5], b[:3], ratio) == ("399.9", "200", "0.500")
    assert numbers(tmp_path)["samples per second"][3] == "2.000"
    assert numbers(tmp_path)["final accuracy"][3] == "1.000"


def test_of_single_runs_their_own_numbers_stand_there(make_run: Make, tmp_path: Path):
    make_run(tmp_path / "a", train_s=100)
    make_run(tmp_path / "b", train_s=50, accuracies=(0.60, 0.76, 0.74, 0.39))
    assert numbers(tmp_path)["time of all work"][1:] == ("400.0 s", "200.0 s", "0.500")
    assert numbers(tmp_path)["final accuracy"][1:] == ("0.7800", "0.3900", "0.500")
    assert numbers(tmp_path)["bytes between nodes"][1:] == ("6.0 MB", "6.0 MB", "1.000")


def test_settings_environment_and_arms_that_changed_are_printed(
    make_run: Make, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    make_run(tmp_path / "a", "daso")
    other = make_run(tmp_path / "b", "daso", settings={"sync_every": 8, "new_key": "x"})
    make_run(tmp_path / "b", "lasgd")
    write_json(other / "environment.json", read_json(other / "environment.json") | {"torch": "3.0"})
    assert show_diff(tmp_path / "a", tmp_path / "b") == 0
    printed = " ".join(capsys.readouterr().out.split())
    assert "environment torch 2.14.1 several: 2.14.1, 3.0" in printed
    assert "strategy.sync_every 4 8" in printed
    assert "strategy.new_key not there x" in printed
    assert "only in B: lasgd" in printed
    assert "only in A" not in printed
