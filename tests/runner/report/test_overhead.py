"""A study whose clock is heavy gets no verdict; one whose clock is light says so."""

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from test_cadence import held, verdict, whole

Make = Callable[..., Path]


def measured(
    make_run: Make,
    root: Path,
    mean: float,
    pairs: int = 30,
    *,
    arm: str = "clock's cost",
    seed: int = 7,
    steps: Any = 20,
    **more: Any,
) -> Path:
    """A run of an arm whose pairs have this mean and a standard deviation of 0.02."""
    path = make_run(
        root,
        "ddp",
        seed,
        (0.60, 0.70, 0.74, 0.78),
        place={"arm": arm, "role": "overhead"},
        world="local",
        exposed=0.5,
        **more,
    )
    spread = 0.02 * math.sqrt((pairs - 1) / pairs)
    ratios = [math.log(mean) + (spread if number % 2 else -spread) for number in range(pairs)]
    return recorded(path, {"steps": steps, "log_ratios": ratios})


def recorded(path: Path, pairs: Any) -> Path:
    """The run with other pairs in its summary."""
    rows = [json.loads(line) for line in (path / "metrics.jsonl").read_text().splitlines()]
    rows[-1]["clock_pairs"] = pairs
    (path / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_a_light_clock_is_told_and_forbids_nothing(make_run: Make, tmp_path: Path):
    whole(make_run, tmp_path)
    before = verdict(held(tmp_path))
    measured(make_run, tmp_path, 1.010)
    found = held(tmp_path)
    assert found.clock_cost is not None
    assert found.clock_cost.cost is not None
    assert found.clock_cost.cost.limit == pytest.approx(1.0163, abs=5e-5)
    assert found.clock_cost.sentence.startswith("The clock is light: steps take 1.0100 times as long")
    assert verdict(found) == before
    assert [line.arm.label for line in found.lines] == ["daso"], "it is no arm to be compared"


@pytest.mark.parametrize(
    ("mean", "told", "limit"),
    [
        (1.015, "not shown to be light: steps take 1.0150 times as long", "1.0213"),
        (1.024, "not shown to be light: steps take 1.0240 times as long", "1.0304"),
        (1.030, "too heavy: steps take 1.0300 times as long", "1.0364"),
    ],
)
def test_a_clock_that_may_be_heavy_leaves_the_study_without_a_verdict(
    make_run: Make, tmp_path: Path, mean: float, told: str, limit: str
):
    whole(make_run, tmp_path)
    measured(make_run, tmp_path, mean)
    word, reasons = verdict(held(tmp_path))
    assert word == "no verdict"
    assert any(told in reason and limit in reason for reason in reasons), reasons


def test_too_few_pairs_say_so_and_forbid_nothing(make_run: Make, tmp_path: Path):
    whole(make_run, tmp_path)
    before = verdict(held(tmp_path))
    measured(make_run, tmp_path, 1.5, pairs=29)
    found = held(tmp_path)
    assert found.clock_cost is not None
    assert found.clock_cost.sentence == (
        "What the clock costs is not known: 29 pairs of blocks: must be 30 or more (clock's cost)."
    )
    assert verdict(found) == before


def test_every_arm_is_judged_by_itself_and_the_worst_decides(make_run: Make, tmp_path: Path):
    """Two hundred light pairs make no heavy arm light."""
    whole(make_run, tmp_path)
    measured(make_run, tmp_path, 1.0, pairs=200, arm="ddp, clock's cost")
    measured(make_run, tmp_path, 1.05, pairs=40, arm="daso, clock's cost", settings={"algorithm": "flat"})
    word, reasons = verdict(held(tmp_path))
    assert word == "no verdict"
    (said,) = [reason for reason in reasons if "too heavy" in reason]
    assert "steps take 1.0500 times as long with the clock" in said
    assert "40 pairs of daso, clock's cost" in said


def test_an_arm_that_is_not_known_is_told_unless_another_is_heavy(make_run: Make, tmp_path: Path):
    whole(make_run, tmp_path)
    measured(make_run, tmp_path, 1.0, arm="ddp, clock's cost")
    measured(make_run, tmp_path, 1.5, 29, arm="daso, clock's cost", settings={"algorithm": "flat"})
    found = held(tmp_path)
    assert found.clock_cost is not None
    assert (found.clock_cost.arm, found.clock_cost.forbids) == ("daso, clock's cost", "")
    measured(make_run, tmp_path, 1.5, arm="sgp, clock's cost", settings={"algorithm": "hierarchical"})
    assert "sgp, clock's cost" in "".join(verdict(held(tmp_path))[1])


def test_runs_of_an_arm_are_taken_together_and_those_that_do_not_count_are_not(
    make_run: Make, tmp_path: Path
):
    whole(make_run, tmp_path)
    for seed in (7, 8):
        measured(make_run, tmp_path, 1.0, pairs=16, seed=seed)
    failed = measured(make_run, tmp_path, 2.0, seed=9) / "status.json"
    failed.write_text(json.dumps(json.loads(failed.read_text()) | {"status": "failed"}))
    found = held(tmp_path)
    assert found.clock_cost is not None
    assert (found.clock_cost.pairs, found.clock_cost.forbids) == (32, "")
    assert found.clock_cost.sentence.startswith("The clock is light: steps take 1.0000")


def test_the_shortest_blocks_of_an_arm_count(make_run: Make, tmp_path: Path):
    whole(make_run, tmp_path)
    measured(make_run, tmp_path, 1.0, seed=7, steps=40)
    measured(make_run, tmp_path, 1.0, seed=8, steps=5)
    found = held(tmp_path)
    assert found.clock_cost is not None
    assert "blocks of 5 steps: must be 20 or more" in found.clock_cost.sentence


@pytest.mark.parametrize(
    "pairs",
    [
        {"steps": 20, "log_ratios": [math.nan] * 240},
        {"steps": 20, "log_ratios": [0.01] * 30 + [None]},
        {"steps": 20, "log_ratios": ["0.01"] * 30},
        {"steps": 20, "log_ratios": 5},
        {"steps": 20, "log_ratios": None},
        {"steps": None, "log_ratios": [0.01] * 30},
        {"log_ratios": [0.01] * 30},
        {},
    ],
)
def test_an_odd_record_is_no_cost_and_costs_no_report(make_run: Make, tmp_path: Path, pairs: Any):
    whole(make_run, tmp_path)
    before = verdict(held(tmp_path))
    recorded(measured(make_run, tmp_path, 1.0), pairs)
    found = held(tmp_path)
    assert found.clock_cost is not None
    assert found.clock_cost.sentence == (
        "What the clock costs is not known: not all of its pairs are numbers (clock's cost)."
    )
    assert verdict(found) == before


@pytest.mark.parametrize("pairs", [None, 5, [1.0]])
def test_a_run_without_pairs_has_none(make_run: Make, tmp_path: Path, pairs: Any):
    whole(make_run, tmp_path)
    recorded(measured(make_run, tmp_path, 1.0), pairs)
    found = held(tmp_path)
    assert found.clock_cost is not None
    assert "0 pairs of blocks: must be 30" in found.clock_cost.sentence
