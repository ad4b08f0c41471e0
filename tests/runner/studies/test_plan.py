"""The plan of a study is there before its first run, and what comes later is a stage of its own."""

import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from daso_bench.runner.config.load import requests
from daso_bench.runner.records.study_plan import FILE, Stage, stages_of
from daso_bench.runner.studies.plan import PlannedRun, declare, plan_of
from daso_bench.strategies.errors import ConfigError


def planned(folder: Path, *words: str) -> Sequence[PlannedRun]:
    return plan_of(requests(["+study=mission", f"results_dir={folder}", *words], sweep=True, cwd=folder)).runs


def stages(folder: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in (folder / "mission" / FILE).read_text().splitlines()]


def test_a_plan_lists_runs_arms_and_seeds_and_how_they_will_be_compared(tmp_path: Path) -> None:
    wanted = planned(tmp_path, "seed=0,1", "study.arm=ddp by nodes,daso")
    declare(wanted, ["+study=mission"], unix=100.0, commit=lambda: "abc")
    (stage,) = stages(tmp_path)
    assert stage["runs"] == [run.path.name for run in wanted]
    assert (stage["arms"], stage["seeds"]) == (["ddp by nodes", "daso"], [0, 1])
    assert (stage["baseline"], stage["level"]) == ("ddp by nodes", 0.95)
    assert (stage["targets"], stage["commit"], stage["unix"]) == ([0.95], "abc", 100.0)


def test_more_runs_are_a_new_stage_and_the_same_ones_are_none(tmp_path: Path) -> None:
    first = planned(tmp_path, "seed=0", "study.arm=daso")
    more = planned(tmp_path, "seed=0,1", "study.arm=daso")
    declare(first, [], unix=100.0, commit=lambda: None)
    declare(first, [], unix=150.0, commit=lambda: pytest.fail("nothing is new: nobody asks for the commit"))
    declare(more, [], unix=200.0, commit=lambda: None)
    assert [stage["seeds"] for stage in stages(tmp_path)] == [[0], [1]]
    found = [(stage.unix, stage.runs) for stage in stages_of(tmp_path / "mission")]
    assert found == [(100.0, (more[0].path.name,)), (200.0, (more[1].path.name,))]


def test_a_plan_is_read_without_trust(tmp_path: Path) -> None:
    assert stages_of(tmp_path) == []
    rows = ['{"unix": 5.0, "runs": ["a", 1]}', '{"unix": "x", "runs": ["b"]}', "{", '{"unix": true}']
    (tmp_path / FILE).write_text("\n".join([*rows, '{"unix": 7.0}']))
    nothing = Stage(unix=7.0, baseline="", level=None, targets=(), runs=())
    assert stages_of(tmp_path) == [dataclasses.replace(nothing, unix=5.0, runs=("a",)), nothing]


def test_a_plan_that_cannot_be_written_says_where(tmp_path: Path) -> None:
    (tmp_path / "mission").write_text("in the way")
    with pytest.raises(ConfigError, match="mission"):
        declare(planned(tmp_path, "seed=0", "study.arm=daso"), [], unix=0.0, commit=lambda: None)
