"""Stored samples to target: which runs a file speaks of, and what is refused."""

from pathlib import Path
from typing import Any

import pytest
import yaml
from asking import requests

from daso_bench.runner.config import groups
from daso_bench.runner.config.load import to_plain
from daso_bench.runner.report.claims.convergence_points import (
    Reference,
    load,
    match,
    read,
    workload_of,
    write,
)
from daso_bench.runner.studies.pilot import baseline_of
from daso_bench.strategies.errors import ConfigError

GOOD: dict[str, Any] = {
    "workload": {"train.target": 0.9},
    "samples": [1000.0 + number for number in range(10)],
    "missed": 0,
    "command": "daso-bench pilot +study=mine --reference",
    "date": "2026-01-01",
}


def good() -> Reference:
    fields: dict[str, Any] = {**GOOD, "samples": tuple(GOOD["samples"])}
    return Reference(name="mine", **fields)


def test_the_shipped_points_are_of_the_mission_study_as_it_is(tmp_path: Path):
    """A changed default of model, data, optimizer, schedule or training asks for new points."""
    base = baseline_of(requests(tmp_path, "study.arm=ddp by nodes", "seed=0"))
    found = match(to_plain(base), load())
    assert found is not None
    assert found.name == "mission"
    assert len(found.samples) >= 10


def test_ranks_links_seeds_and_folders_are_no_part_of_a_workload():
    config = {
        "model": {"_target_": "a.B", "depth": 3},
        "dataset": {"root": "/here", "size": 1},
        "train": {"target": 0.9, "stop": "first", "max_seconds": 5.0},
        "cluster": {"nodes": 4},
        "seed": 3,
    }
    found = workload_of(config)
    assert found["model.depth"] == 3
    assert found["dataset.size"] == 1
    assert found["train.target"] == 0.9
    assert not {"dataset.root", "train.stop", "train.max_seconds", "cluster.nodes", "seed"} & set(found)
    assert workload_of(config | {"cluster": {"nodes": 1}, "seed": 4}) == found
    assert workload_of(config | {"train": {"target": 0.8}}) != found


def test_the_users_own_points_come_after_the_shipped_ones_and_are_taken(tmp_path: Path):
    base = baseline_of(requests(tmp_path, "study.arm=ddp by nodes", "seed=0"))
    (tmp_path / "convergence").mkdir()
    tree = GOOD | {"workload": workload_of(to_plain(base))}
    (tmp_path / "convergence" / "own.yaml").write_text(yaml.safe_dump(tree))
    found = match(to_plain(base), load([tmp_path]))
    assert found is not None
    assert found.name == "own"


def test_what_is_written_is_what_is_read(tmp_path: Path):
    reference = good()
    write(tmp_path / "new" / "mine.yaml", reference, "Ten runs")
    assert read(tmp_path / "new" / "mine.yaml") == reference
    assert groups.describe(tmp_path / "new" / "mine.yaml") == "Ten runs"


def test_a_folder_that_cannot_be_made_is_told(tmp_path: Path):
    (tmp_path / "file").write_text("")
    reference = good()
    with pytest.raises(ConfigError, match="cannot be written"):
        write(tmp_path / "file" / "mine.yaml", reference, "Ten runs")


@pytest.mark.parametrize(
    ("tree", "said"),
    [
        ([1], "must hold the keys"),
        (GOOD | {"sampels": 1}, "sampels: unknown key (did you mean samples?)"),
        ({key: value for key, value in GOOD.items() if key != "date"}, "date: must be given"),
        (GOOD | {"samples": [1.0] * 9}, "samples: 9 runs; must be 10 or more"),
        (GOOD | {"samples": [1.0] * 9 + [0.0]}, "samples=0.0: must be numbers above 0"),
        (GOOD | {"samples": [1.0] * 9 + [True]}, "samples=True: must be numbers above 0"),
        (GOOD | {"samples": 3}, "samples=3: must be a list of numbers"),
        (GOOD | {"workload": "all"}, "workload=all: must be keys and values"),
        (GOOD | {"missed": 11}, "missed=11: must be from 0 to 10"),
    ],
)
def test_a_file_that_is_wrong_is_refused_by_name(tree: Any, said: str, tmp_path: Path):
    file = tmp_path / "mine.yaml"
    file.write_text(yaml.safe_dump(tree))
    with pytest.raises(ConfigError) as caught:
        read(file)
    assert str(caught.value).startswith(f"{file}: ")
    assert said in str(caught.value)


def test_a_file_that_is_no_yaml_is_refused_by_name(tmp_path: Path):
    file = tmp_path / "mine.yaml"
    file.write_text("a: [")
    with pytest.raises(ConfigError, match="cannot be read"):
        read(file)
