"""The arithmetic of docs/daso_34_percent.md, by hand."""

from collections.abc import Callable
from pathlib import Path

import pytest

from daso_bench.runner.report.daso_shares import (
    CAUSES,
    EPOCHS,
    Point,
    bound,
    daso,
    reduction,
    tables,
    times,
    verdict,
)
from daso_bench.runner.report.load import find_runs, load_run

COMMUNICATION, OVERLAP, PRECISION = CAUSES
ARMS = {
    "ddp": 1.25,
    "ddp by nodes": 1.2,
    "ddp without overlap": 1.6,
    "ddp in TF32": 2.0,
    "daso B=4": 0.9,
    "daso B=2": 1.0,
    "daso B=1": 1.1,
    "daso blocking": 1.35,
    "a step alone": 0.9,
}


def test_a_whole_run_is_the_mean_over_its_epochs():
    """(8·1.35 + 28·0.9 + 27·1 + 27·1.1) / 90."""
    assert sum(EPOCHS.values()) == 90
    assert daso(ARMS) == pytest.approx(92.7 / 90)


@pytest.mark.parametrize(
    ("cause", "expected"),
    [
        (COMMUNICATION, 1 - 1.03 / 1.2),  # the faster of both baselines
        (OVERLAP, 1 - 1.03 / 1.6),
        (PRECISION, 1 - 1.03 / 2),
    ],
)
def test_a_cause_is_its_baseline_against_daso(cause: str, expected: float):
    assert reduction(ARMS, cause) == pytest.approx(expected)


def test_without_an_arm_there_is_no_number():
    some = {arm: time for arm, time in ARMS.items() if arm != "daso B=2"}
    assert reduction(some, COMMUNICATION) is None
    assert "not run" in tables({Point("m", "4 nodes", ""): some})


@pytest.mark.parametrize(
    ("r", "word"),
    [(0.34, "alone"), (0.3399, "a part"), (0.05, "a part"), (0.0499, "nothing"), (-1.0, "nothing")],
)
def test_the_rules_of_decision(r: float, word: str):
    assert word in verdict(r)


def test_the_table_has_the_range_over_assumptions():
    slower = {**ARMS, "ddp": 2.06, "ddp by nodes": 3.0}
    text = tables({Point("m", "16 nodes", ""): ARMS, Point("m", "16 nodes", "rings"): slower})
    assert "| 14.2% (14.2% to 50.0%): explains a part |" in text
    assert "| rings | 50.0% (56.3%) |" in text


def test_only_runs_of_the_study_count_and_each_once(make_run: Callable[..., Path], tmp_path: Path):
    place = {"arm": "ddp", "size": "4 nodes", "assumption": ""}
    given = {"target": None, "train_s": 50.0, "accuracies": (0.5,)}
    make_run(tmp_path / "results", "ddp", study="other", place=place, **given)
    make_run(tmp_path / "results", "ddp", study="paper_daso", place=place, **given)
    runs = [load_run(path, path.name) for path in find_runs(tmp_path / "results")]
    ((point, arms),) = times(runs).items()
    samples = runs[0].samples
    assert samples
    assert (point.size, arms["ddp"]) == ("4 nodes", 50.0 / samples)
    with pytest.raises(ValueError, match="a second run of 'ddp'"):
        times([*runs, *runs])


def test_nobody_can_gain_more_than_what_is_not_computing():
    assert bound(ARMS) == pytest.approx(1 - 0.9 / 1.2)
    assert bound({arm: time for arm, time in ARMS.items() if arm != "a step alone"}) is None
