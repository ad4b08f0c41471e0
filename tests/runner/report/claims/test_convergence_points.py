"""Stored samples to target: files and the runs they apply to; weak baselines, and arms that are too good."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from asking import requests
from sharing import there
from test_bounds import stating
from test_speedups import BASE, Make, claim_of, comparisons_of, runs_of, study

from daso_bench.runner.config import groups
from daso_bench.runner.config import load as config_load
from daso_bench.runner.report.claims.claim_tables import speedup_rows
from daso_bench.runner.report.claims.convergence_points import (
    ConvergenceCheck,
    Reference,
    load,
    match,
    read,
    workload_of,
    worse_than_known,
    write,
)
from daso_bench.runner.report.claims.judge import JudgedClaim, judge
from daso_bench.runner.report.claims.paper_claims import load as load_claims
from daso_bench.runner.report.claims.speedups import Speedups, all_speedups
from daso_bench.runner.report.claims.study_checks import baseline_strong
from daso_bench.runner.report.data.load import Run, load_runs
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


def reference(run: Run, samples: Sequence[float] = AS_STORED) -> Reference:
    return replace(good(), workload=workload_of(run.config), samples=tuple(samples))


def held(root: Path, *references: Reference) -> Speedups:
    (found,) = all_speedups(comparisons_of(root), references)
    return found


def judged(speedups: Speedups, **changes: Any) -> JudgedClaim:
    """The verdict on DASO's claim, with `changes`."""
    (found,) = judge([claim_of("daso_time", **changes)], [speedups])
    return found


def stored(root: Path, times: float = 1.0) -> Reference:
    """The reference of the runs below `root`, which needed `times` the samples of the stored ones."""
    return reference(load_runs(root, "test")[0], [value / times for value in AS_STORED])


def test_a_baseline_that_needs_more_samples_than_stored_is_weak(make_run: Make, tmp_path: Path):
    study(make_run, tmp_path, fresh=1.0)
    found = held(tmp_path, stored(tmp_path, 1.1))
    (reason,) = found.forbidden
    assert reason.startswith("weak baseline: ddp needs 1.10")
    assert "stored runs of mine (corrected p = " in reason
    assert judged(found).verdict.word == "no verdict"
    assert reason in judged(found).verdict.reasons


def test_a_baseline_like_the_stored_one_is_not_weak_and_it_is_said(make_run: Make, tmp_path: Path):
    study(make_run, tmp_path, fresh=1.0)
    found = held(tmp_path, stored(tmp_path))
    assert found.forbidden == ()
    strip = baseline_strong(found)
    assert strip.level == "green"
    assert strip.sentence == "samples to target were compared with 11 stored runs of mine (2026-01-01)"
    assert speedup_rows([found])[0]["reference"] == "mine"


def test_an_arm_that_needs_fewer_samples_gets_no_verdict_and_the_others_do(make_run: Make, tmp_path: Path):
    """sgp crosses one evaluation earlier, between 2,000 and 3,000 samples."""
    study(make_run, tmp_path, fresh=1.0, exposed=0.5)
    runs_of(make_run, tmp_path, "sgp", BASE, (0.6, 0.7, 0.76, 0.78), exposed=0.5)
    found = held(tmp_path, stored(tmp_path))
    assert found.forbidden == ()
    assert list(found.guard.flagged) == ["sgp"]
    strip = baseline_strong(found)
    assert strip.level == "amber"
    assert strip.sentence.startswith("sgp needs 0.7")
    assert strip.sentence.endswith("): fewer than it should, flagged until explained")
    assert judged(found).verdict.word != "no verdict"
    assert judged(found, arm="sgp").verdict.word == "no verdict"


def test_an_arm_that_is_significant_alone_and_not_among_all_gets_its_verdict(make_run: Make, tmp_path: Path):
    """sgp crosses between 3,000 and 3,770 samples, 3 % earlier: p = 0.04 alone, of three arms 0.12."""
    study(make_run, tmp_path, fresh=1.0, exposed=0.5)
    crossing = ((1500, 0.6), (3000, 0.7), (3770, 0.76), (4000, 0.78))
    for seed, whole_s in enumerate(BASE):
        rows = [
            {"kind": "evaluation", "attempt": 1, "index": place, "step": place, "epoch": 0}
            | {
                "samples": samples,
                "split": "test",
                "accuracy": accuracy,
                "correct": None,
                "count": 360,
                "loss": 1.0,
            }
            | {"train_s": whole_s * samples / 4000, "wall_s": whole_s}
            for place, (samples, accuracy) in enumerate(crossing)
        ]
        make_run(tmp_path, "sgp", seed, rows=rows, place={"arm": "sgp", "role": ""}, exposed=0.5)
    found = held(tmp_path, stored(tmp_path))
    guard = found.guard
    shift = guard.shifts["sgp"]
    assert shift.p < 0.05 < shift.adjusted
    assert guard.flagged == {}
    row = next(row for row in speedup_rows([found]) if row["arm"] == "sgp")
    assert (row["fewer_samples_p"], row["fewer_samples_holm_p"]) == (shift.p, shift.adjusted)
    assert judged(found, arm="sgp").verdict.word != "no verdict"


def test_a_baseline_that_is_too_good_gives_no_verdict_against_it(make_run: Make, tmp_path: Path):
    study(make_run, tmp_path, fresh=1.0, exposed=0.5)
    found = held(tmp_path, stored(tmp_path, 0.9))
    assert set(found.guard.flagged) == {"ddp", "daso"}
    assert baseline_strong(found).sentence.startswith("ddp needs 0.90")
    assert judged(found).verdict.word == "no verdict"


def test_runs_that_missed_count_with_all_they_used(make_run: Make, tmp_path: Path):
    """None of the baseline's runs got there in 4,000 samples: 15 % more than stored, at least."""
    study(make_run, tmp_path, fresh=1.0, accuracies=(0.1, 0.2, 0.3, 0.4))
    (reason,) = held(tmp_path, stored(tmp_path)).forbidden
    assert reason.startswith("weak baseline: ddp needs 1.155")


def test_another_workload_has_no_reference_and_that_is_said(make_run: Make, tmp_path: Path):
    study(make_run, tmp_path, fresh=1.0)
    other = stored(tmp_path, 1.5)
    changed = {name: value for name, value in other.workload.items() if not name.startswith("model")}
    found = held(tmp_path, replace(other, workload=changed))
    assert found.forbidden == ()
    strip = baseline_strong(found)
    assert (strip.level, strip.sentence) == ("amber", "nothing is stored for this workload")


def test_without_a_target_nothing_is_held_against_anything(make_run: Make, tmp_path: Path):
    study(make_run, tmp_path, fresh=1.0, target=None)
    assert held(tmp_path).guard == ConvergenceCheck()


def elsewhere(root: Path, times: float = 1.0, **workload: Any) -> Reference:
    """`stored` with other values of the workload."""
    points = stored(root, times)
    return replace(points, name="other", workload={**points.workload, **workload})


def test_a_baseline_is_weak_where_other_settings_need_fewer_samples(make_run: Make, tmp_path: Path):
    """Its own settings are no better in any run; the learning rate is."""
    study(make_run, tmp_path, fresh=1.0)
    found = held(tmp_path, stored(tmp_path), elsewhere(tmp_path, 1.2, **{"optimizer.lr": 0.2}))
    (reason,) = found.forbidden
    assert reason.startswith("weak baseline: ddp needs 1.20")
    assert reason.endswith("), which have optimizer.lr=0.2")
    assert baseline_strong(found).forbids == {"ddp": "weak baseline"}
    assert found.guard.reference is not None, "arms are compared with their own settings"
    assert list(found.guard.flagged) == []


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
    assert found.forbidden == ()
    assert baseline_strong(found).level == "amber"


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
    ("target", "said"),
    [
        (0.75, "none of the 5 runs of ddp reached the target"),
        (None, "no run of ddp is better than chance"),
    ],
)
def test_where_nothing_learns_nothing_is_won_and_nothing_is_kept(
    target: float | None, said: str, make_run: Make, tmp_path: Path
):
    """A learning rate of nothing for all arms: the arm is faster, and loses no accuracy."""
    study(make_run, tmp_path, fresh=1.0, arm=(50, 52, 48, 54, 46), accuracies=GUESSES, target=target)
    stating(tmp_path, classes=10)
    found = held(tmp_path)
    assert found.guard.untrained == said
    strip = baseline_strong(found)
    assert (strip.level, list(strip.forbids)) == ("red", ["ddp"])
    found = replace(found, checks=(strip,))
    assert found.not_comparable(found.lines[0].arm) != ""
    for claim in load_claims():
        for each in judge([claim], [found]):
            allowed = claim.headline == "efficiency" or each.verdict.word not in GAINS
            assert allowed, f"{claim.id}: {each.verdict}"
    assert said in judged(found).verdict.reasons
    kept = judged(found, headline="quality", less_time=None, direction="not_worse")
    assert kept.verdict.word == "no verdict"


def test_what_is_better_than_chance_or_has_unknown_classes_is_no_ground(make_run: Make, tmp_path: Path):
    study(make_run, tmp_path, fresh=1.0, accuracies=(0.1, 0.12, 0.14, 0.16), target=None)
    assert held(tmp_path).guard.untrained == ""
    stating(tmp_path, classes=10)
    assert held(tmp_path).guard.untrained == "", "0.16 is more than three standard errors above a tenth"
    stating(tmp_path, classes=5)
    assert held(tmp_path).guard.untrained == "no run of ddp is better than chance"


def test_a_baseline_that_sometimes_misses_its_target_is_amber(make_run: Make, tmp_path: Path):
    study(make_run, tmp_path, fresh=1.0, missed=(2,))
    some = baseline_strong(held(tmp_path, stored(tmp_path)))
    assert (some.level, some.sentence) == ("amber", "1 of 5 runs of ddp missed the target")


def test_claims_finds_references_in_the_users_own_folder(
    make_run: Make, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    study(make_run, tmp_path / "in", fresh=1.0)
    write(tmp_path / "own" / "convergence" / "mine.yaml", stored(tmp_path / "in", 1.1), "Mine")
    assert show_verdicts(tmp_path / "in", tmp_path / "own") == 0
    assert "weak baseline" in " ".join(capsys.readouterr().out.split())
    assert show_verdicts(tmp_path / "in", None) == 0
    assert "weak baseline" not in " ".join(capsys.readouterr().out.split())
