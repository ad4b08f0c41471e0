"""The plan is asked: runs that are missing, added or changed make all verdicts of the study exploratory."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from sharing import Make, agree, compared, there

from daso_bench.runner.report.claims.speedups import Check, speedups_of
from daso_bench.runner.report.claims.study_checks import plan_complete
from daso_bench.runner.report.results import results_of

SEEDS = range(5)


@pytest.fixture
def study(make_run: Make, tmp_path: Path) -> Path:
    """Five runs of ddp and of daso, all planned; its folder."""
    for seed in SEEDS:
        make_run(tmp_path, "ddp", seed)
        make_run(tmp_path, "daso", seed)
    return tmp_path / "quick"


def asked(folder: Path) -> Check:
    return plan_complete(there(speedups_of(compared(folder.parent))))


def plan(folder: Path, edit: Callable[[list[dict[str, Any]]], Any]) -> None:
    """Apply `edit` to the stages of the plan; here each run is a stage of its own."""
    stages = [json.loads(line) for line in (folder / "plan.jsonl").read_text().splitlines()]
    edit(stages)
    (folder / "plan.jsonl").write_text("".join(json.dumps(stage) + "\n" for stage in stages))


def named(folder: Path, start: str) -> Path:
    (path,) = folder.glob(f"{start}-*")
    return path


def test_all_planned_runs_are_there(study: Path) -> None:
    found = asked(study)
    assert (found.level, found.exploratory) == ("green", "")
    assert found.sentence == "10 runs, as planned before the first began"


def test_without_a_plan_verdicts_are_exploratory(study: Path) -> None:
    (study / "plan.jsonl").unlink()
    found = asked(study)
    assert (found.level, found.exploratory) == ("amber", "no plan was written before the runs")


def test_deleted_runs_are_missing_whether_of_one_arm_or_of_all(study: Path) -> None:
    gone = named(study, "daso-small_cnn-digits-s3")
    shutil.rmtree(gone)
    found = asked(study)
    assert (found.level, found.exploratory) == ("red", "1 of 10 planned runs without a result")
    assert found.details == (f"{found.sentence}: {gone.name}",)
    shutil.rmtree(named(study, "ddp-small_cnn-digits-s3"))
    assert asked(study).sentence == "2 of 10 planned runs without a result"


def test_a_failed_run_is_missing_until_it_is_repeated(make_run: Make, tmp_path: Path, study: Path) -> None:
    make_run(tmp_path, "daso", 5, status="failed", reason="killed")
    make_run(tmp_path, "ddp", 5)
    assert asked(study).sentence == "1 of 12 planned runs without a result"
    make_run(tmp_path, "daso", 5)
    assert asked(study).level == "green"


def test_runs_of_another_workload_are_no_part_of_the_comparison(study: Path) -> None:
    plan(study, lambda stages: stages[0]["runs"].append("ddp-mlp-digits-s0-01234567"))
    assert asked(study).level == "green"


def test_a_run_that_no_stage_declares_was_added(make_run: Make, tmp_path: Path, study: Path) -> None:
    added = make_run(tmp_path, "daso", 5)
    plan(study, list.pop)
    found = asked(study)
    assert (found.level, found.sentence) == ("red", "1 of 11 runs not in the plan")
    assert added.name in found.details[0]


def test_a_plan_that_was_written_after_the_start_is_none(study: Path) -> None:
    """The runs started at 1,000 s; clocks of two hosts may be a minute apart."""
    plan(study, lambda stages: [stage.update(unix=1050) for stage in stages])
    assert asked(study).level == "green"
    plan(study, lambda stages: stages[2].update(unix=1100))
    assert asked(study).sentence == "1 of 10 runs planned after the start"


def test_seeds_that_were_added_after_results_are_named(make_run: Make, tmp_path: Path, study: Path) -> None:
    """The first runs ended at 1,400 s."""
    plan(study, lambda stages: stages.__setitem__(slice(None), [one(stages, 0)]))
    for strategy in ("ddp", "daso"):
        later = [{"number": 1, "started_unix": 2000, "ended_unix": 2400}]
        make_run(tmp_path, strategy, 5, attempts=later)
    plan(study, lambda stages: stages.__setitem__(slice(1, None), [one(stages[1:], 1390)]))
    assert asked(study).level == "green", "declared before any run had ended"
    plan(study, lambda stages: stages[1].update(unix=1500))
    found = asked(study)
    assert found.level == "red"
    assert found.sentence == "; ".join(
        f"{arm}: 1 seed added after results were there" for arm in ("ddp", "daso")
    )


def one(stages: list[dict[str, Any]], unix: float) -> dict[str, Any]:
    """All runs of `stages` in one stage."""
    return {**stages[0], "unix": unix, "runs": [run for stage in stages for run in stage["runs"]]}


def test_an_arm_that_was_added_later_has_no_more_seeds(make_run: Make, tmp_path: Path, study: Path) -> None:
    for seed in SEEDS:
        make_run(tmp_path, "lasgd", seed, attempts=[{"started_unix": 2000, "ended_unix": 2400}])
    first, last = slice(None, -5), slice(-5, None)
    plan(study, lambda s: s.__setitem__(slice(None), [one(s[first], 0), one(s[last], 1500)]))
    assert asked(study).level == "green"


@pytest.mark.parametrize(
    ("key", "value", "words"),
    [
        ("targets", [0.8], "target 0.75, planned 0.8"),
        ("targets", [None], "target 0.75, planned none"),
        ("baseline", "ddp by nodes", "baseline none, planned ddp by nodes"),
        ("level", 0.99, "level none, planned 0.99"),
    ],
)
def test_what_was_changed_against_the_plan_is_named(study: Path, key: str, value: Any, words: str) -> None:
    plan(study, lambda stages: [stage.update({key: value}) for stage in stages])
    found = asked(study)
    assert (found.level, found.sentence, found.exploratory) == ("red", words, words)


def test_targets_changed_in_all_configurations_are_found_twice(study: Path) -> None:
    """As changed files the runs contradict their ids; with new ids they are in no plan."""
    for path in study.glob("*-s*"):
        config = yaml.safe_load((path / "config.yaml").read_text())
        config["train"]["target"] = 0.7
        (path / "config.yaml").write_text(yaml.safe_dump(config))
    results = results_of(study.parent, "test", None)
    assert all("config.yaml is that of run" in run.reason for run in results.runs)
    assert asked(study).sentence == "target 0.7, planned 0.75"
    stages = (study / "plan.jsonl").read_text()
    for path in list(study.glob("*-s*")):
        agree(path)
    (study / "plan.jsonl").write_text(stages)
    assert asked(study).sentence.startswith("10 of 10 planned runs without a result; 10 of 10 runs not in")
