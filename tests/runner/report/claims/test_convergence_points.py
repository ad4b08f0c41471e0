"""Stored samples to target: files and the runs they apply to; weak baselines, and arms that are too good."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from asking import requests
from sharing import there
from test_bounds import stating
from test_speedups import BASE, Make, claim_of, comparisons_of, reasons, runs_of, study

from daso_bench.runner.config import groups
from daso_bench.runner.config import load as config_load
from daso_bench.runner.report.claims.claim_tables import speedup_rows
from daso_bench.runner.report.claims.convergence_points import (
    ConvergenceCheck,
    Reference,
    learnt_nothing,
    load,
    match,
    read,
    workload_of,
    worse_than_known,
    write,
)
from daso_bench.runner.report.claims.judge import JudgedClaim, judge
from daso_bench.runner.report.claims.paper_claims import load as load_claims
from daso_bench.runner.report.claims.speedups import Speedups
from daso_bench.runner.report.claims.study_checks import all_speedups, baseline_strong
from daso_bench.runner.report.data.load import load_runs
from daso_bench.runner.report.results import show_verdicts
from daso_bench.runner.report.statistics.welch import Times
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


@pytest.mark.parametrize("name", ["mission", "mission_fashion"])
def test_the_shipped_points_are_of_the_study_as_it_is(tmp_path: Path, name: str):
    """A changed default of model, data, optimizer, schedule or training asks for new points."""
    words = [f"+study={name}", "study.arm=ddp by nodes", "seed=0"]
    base = baseline_of(config_load.requests(words, sweep=True, cwd=tmp_path))
    found = there(match(base.tree, load()))
    assert found.name == name
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
    tree = GOOD | {"workload": workload_of(base.tree)}
    (tmp_path / "convergence" / "own.yaml").write_text(yaml.safe_dump(tree))
    found = there(match(base.tree, load([tmp_path])))
    assert found.name == "own"


def test_what_is_written_is_what_is_read(tmp_path: Path):
    file = tmp_path / "new" / "mine.yaml"
    write(file, good(), "Ten runs")
    assert (read(file), groups.describe(file)) == (good(), "Ten runs")
    with pytest.raises(ConfigError, match="cannot be written"):
        write(file / "mine.yaml", good(), "Ten runs")


@pytest.mark.parametrize(
    ("tree", "said"),
    [
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


# Runs of `study` cross the target between 3,000 and 4,000 samples, scored at their geometric mean.
CROSSED = (3000 * 4000) ** 0.5
AS_STORED = tuple(CROSSED * (1 + 0.01 * number) for number in range(-5, 6))


def held(root: Path, *references: Reference) -> Speedups:
    (found,) = all_speedups(comparisons_of(root), references)
    return found


def judged(speedups: Speedups, **changes: Any) -> JudgedClaim:
    """The verdict on DASO's claim, with `changes`."""
    (found,) = judge([claim_of("daso_time", **changes)], [speedups])
    return found


def stored(root: Path, times: float = 1.0) -> Reference:
    """The reference of the runs below `root`, which needed `times` the samples of the stored ones."""
    workload = workload_of(load_runs(root, "test")[0].config)
    return replace(good(), workload=workload, samples=tuple(value / times for value in AS_STORED))


def elsewhere(root: Path, times: float = 1.0, **workload: Any) -> Reference:
    """`stored` with other values of the workload."""
    points = stored(root, times)
    return replace(points, name="other", workload={**points.workload, **workload})


@pytest.mark.parametrize(
    ("last", "times", "other", "said"),
    [
        (0.78, 1.1, {}, "1.10"),
        # No run of the baseline got there in 4,000 samples: 15 % more than stored, at least.
        (0.74, 1.0, {}, "1.155"),
        # Its own settings are no better in any run; another learning rate is.
        (0.78, 1.2, {"optimizer.lr": 0.2}, "1.20"),
    ],
)
def test_a_baseline_is_weak_where_any_stored_settings_needed_fewer_samples(
    make_run: Make, tmp_path: Path, last: float, times: float, other: dict[str, Any], said: str
):
    study(make_run, tmp_path, fresh=1.0, accuracies=(0.6, 0.7, 0.74, last))
    found = held(tmp_path, stored(tmp_path), elsewhere(tmp_path, times, **other))
    (weak,) = [each for each in baseline_strong(found).forbids if each.reason == "weak baseline"]
    assert weak.label == "ddp"
    assert weak.sentence.startswith(f"weak baseline: ddp needs {said}")
    assert "stored runs of " in weak.sentence
    assert weak.sentence.endswith("), which have optimizer.lr=0.2") is bool(other)
    assert found.not_comparable(found.lines[0].arm)
    assert judged(found).verdict.word == "no verdict"
    assert weak.sentence in judged(found).verdict.reasons
    assert found.convergence.flagged == {}


def test_a_baseline_like_the_stored_one_is_not_weak_and_it_is_said(make_run: Make, tmp_path: Path):
    study(make_run, tmp_path, fresh=1.0)
    found = held(tmp_path, stored(tmp_path))
    assert found.forbidden == []
    strip = baseline_strong(found)
    assert strip.level == "green"
    assert strip.sentence == "samples to target were compared with 11 stored runs of mine (2026-01-01)"
    assert speedup_rows([found])[0]["reference"] == "mine"


def test_an_arm_that_needs_fewer_samples_gets_no_verdict_and_the_others_do(make_run: Make, tmp_path: Path):
    """sgp crosses one evaluation earlier, between 2,000 and 3,000 samples."""
    study(make_run, tmp_path, fresh=1.0, exposed=0.5)
    runs_of(make_run, tmp_path, "sgp", BASE, (0.6, 0.7, 0.76, 0.78), exposed=0.5)
    found = held(tmp_path, stored(tmp_path))
    strip = baseline_strong(found)
    assert (strip.level, reasons(strip)) == ("red", {"sgp": "fewer samples than stored"})
    assert strip.sentence.startswith("sgp needs 0.7")
    assert strip.sentence.endswith("): fewer than it should, flagged until explained")
    assert judged(found).verdict.word != "no verdict"
    assert judged(found, arm="sgp").verdict.word == "no verdict"
    row = next(row for row in speedup_rows([found]) if row["arm"] == "sgp")
    shift = found.convergence.shifts["sgp"]
    assert (row["fewer_samples_p"], row["fewer_samples_holm_p"]) == (shift.p, shift.adjusted)
    assert shift.p < shift.adjusted < 0.05


def test_a_baseline_that_is_too_good_gives_no_verdict_against_it(make_run: Make, tmp_path: Path):
    study(make_run, tmp_path, fresh=1.0, exposed=0.5)
    found = held(tmp_path, stored(tmp_path, 0.9))
    assert list(reasons(baseline_strong(found))) == ["ddp", "daso"]
    assert baseline_strong(found).sentence.startswith("ddp needs 0.90")
    assert judged(found).verdict.word == "no verdict"


@pytest.mark.parametrize(
    "workload",
    [
        {"train.global_batch_size": 32},
        {"train.target": 0.7},
        {"train.target_metric": "top5"},
        {"model.norm": "batch"},
        {"dataset._target_": "other"},
    ],
    ids=str,
)
def test_another_task_says_nothing_of_this_one(workload: dict[str, Any], make_run: Make, tmp_path: Path):
    study(make_run, tmp_path, fresh=1.0)
    found = held(tmp_path, elsewhere(tmp_path, 1.5, **workload))
    assert found.forbidden == []
    strip = baseline_strong(found)
    assert (strip.level, strip.sentence) == ("amber", "nothing is stored for this workload")


def test_without_a_target_nothing_is_held_against_anything(make_run: Make, tmp_path: Path):
    study(make_run, tmp_path, fresh=1.0, target=None)
    assert held(tmp_path).convergence == ConvergenceCheck()


def settings_of_best(count: int, times: float, spread: float, draw: Any) -> tuple[Times, list[Reference]]:
    """Five runs of a baseline that truly needs `times` the samples of `count` equally good settings.

    `spread`: standard deviation of ln of the samples.
    """
    samples = [np.exp(spread * draw.standard_normal(10)).tolist() for _ in range(count)]
    references = [replace(good(), samples=tuple(values)) for values in samples]
    return Times(tuple((times * np.exp(spread * draw.standard_normal(5))).tolist())), references


@pytest.mark.parametrize(
    ("count", "spread", "least"),
    [(1, 0.05, 0.99), (1, 0.10, 0.90), (1, 0.20, 0.40), (10, 0.05, 0.99), (10, 0.10, 0.85)],
)
def test_a_baseline_that_needs_a_fifth_more_is_found(count: int, spread: float, least: float):
    """docs/method.md, "Validity and guard": 10 stored runs of each settings, 5 new ones."""
    draw = np.random.default_rng(1)
    studies = [settings_of_best(count, 1.2, spread, draw) for _ in range(400)]
    found = sum(worse_than_known(*each) is not None for each in studies) / len(studies)
    assert least <= found


@pytest.mark.parametrize("count", [1, 10])
def test_a_baseline_as_good_as_the_best_is_seldom_called_weak(count: int):
    """At most 5 of 100 studies, with three standard errors of 1,000 of them."""
    draw = np.random.default_rng(2)
    studies = [settings_of_best(count, 1.0, 0.1, draw) for _ in range(1000)]
    assert sum(worse_than_known(*each) is not None for each in studies) < 1000 * (0.05 + 3 * 0.007)


GAINS = ("reproduced", "partly", "supported", "smaller here", "contradicted")
GUESSES = (0.10, 0.11, 0.09, 0.12)  # of ten classes, 360 samples


@pytest.mark.parametrize(
    ("target", "said", "reason"),
    [
        (0.75, "none of the 5 runs of ddp reached the target", "baseline missed its target"),
        (None, "no run of ddp is better than chance", "baseline learnt nothing"),
    ],
)
def test_where_nothing_learns_nothing_is_won_and_nothing_is_kept(
    target: float | None, said: str, reason: str, make_run: Make, tmp_path: Path
):
    """A learning rate of nothing for all arms: the arm is faster, and loses no accuracy."""
    arm = (50, 52, 48, 54, 46)
    study(make_run, tmp_path, fresh=1.0, arm=arm, accuracies=GUESSES, target=target, exposed=0.5)
    stating(tmp_path, classes=10)
    found = held(tmp_path)
    strip = baseline_strong(found)
    assert (strip.level, strip.sentence, reasons(strip)) == ("red", said, {"ddp": reason})
    assert found.not_comparable(found.lines[0].arm) == reason
    for claim in load_claims():
        for each in judge([claim], [found]):
            allowed = claim.headline == "efficiency" or each.verdict.word not in GAINS
            assert allowed, f"{claim.id}: {each.verdict}"
    assert said in judged(found).verdict.reasons
    kept = judged(found, headline="quality", less_time=None, direction="not_worse")
    assert kept.verdict.word == "no verdict"


def test_what_is_better_than_chance_or_has_unknown_classes_is_no_ground(make_run: Make, tmp_path: Path):
    study(make_run, tmp_path, fresh=1.0, accuracies=(0.1, 0.12, 0.14, 0.16), target=None)
    assert learnt_nothing(held(tmp_path).baseline) == ""
    stating(tmp_path, classes=10)
    assert learnt_nothing(held(tmp_path).baseline) == "", "0.16 is above a tenth by three standard errors"
    stating(tmp_path, classes=5)
    assert learnt_nothing(held(tmp_path).baseline) == "no run of ddp is better than chance"


def test_a_baseline_that_sometimes_misses_its_target_is_amber(make_run: Make, tmp_path: Path):
    study(make_run, tmp_path, fresh=1.0, missed=(2,))
    some = baseline_strong(held(tmp_path, stored(tmp_path)))
    assert (some.level, some.sentence) == ("amber", "1 of 5 runs of ddp missed the target")


def test_claims_finds_references_in_the_users_own_folder(
    make_run: Make, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    study(make_run, tmp_path / "in", fresh=1.0)
    write(tmp_path / "own" / "convergence" / "mine.yaml", stored(tmp_path / "in", 1.1), "Mine")
    for folder in (tmp_path / "own", None):
        assert show_verdicts(tmp_path / "in", folder) == 0
        assert ("weak baseline" in " ".join(capsys.readouterr().out.split())) is (folder is not None)
