"""The arithmetic of docs/daso_34_percent.md, by hand."""

from collections.abc import Callable
from pathlib import Path

import pytest

from daso_bench.runner.report.daso_shares import (
    ALONE,
    CAUSES,
    EPOCHS,
    UNCOVERED,
    Point,
    bound,
    daso,
    reduction,
    steady,
    tables,
    times,
    verdict,
)
from daso_bench.runner.report.load import find_runs, load_run

COMMUNICATION, NARROW, BOTH_NARROW, OVERLAP, PRECISION, NORMS, ALL = CAUSES
ARMS = {
    "ddp": 1.25,
    "ddp by nodes": 1.2,
    "ddp in slices": 1.3,
    "ddp in 16 bits": 1.1,
    "ddp without overlap": 1.6,
    "ddp in TF32": 2.0,
    "ddp with BatchNorm over all": 1.5,
    "ddp with all three": 4.0,
    "daso B=4": 0.9,
    "daso B=2": 1.0,
    "daso B=1": 1.1,
    "daso blocking": 1.35,
    "daso blocking in 16 bits": 1.17,
    "daso B=4 with BatchNorm over a node": 1.0,
    "a step alone": 0.9,
}


def test_a_whole_run_is_the_mean_over_its_epochs():
    """(8·1.35 + 28·0.9 + 27·1 + 27·1.1) / 90."""
    assert sum(EPOCHS.values()) == 90
    assert daso(ARMS) == pytest.approx(92.7 / 90)
    assert daso(ARMS, normed=True) == pytest.approx(92.7 / 90 + 0.1)


@pytest.mark.parametrize(
    ("cause", "expected"),
    [
        (COMMUNICATION, 1 - 1.03 / 1.2),  # the fastest of three baselines
        (NARROW, 1 - (1.03 - 8 * 0.18 / 90) / 1.2),
        (BOTH_NARROW, 1 - (1.03 - 8 * 0.18 / 90) / 1.1),
        (OVERLAP, 1 - 1.03 / 1.6),
        (PRECISION, 1 - 1.03 / 2),
        (NORMS, 1 - 1.13 / 1.5),
        (ALL, 1 - 1.13 / 4),
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
    slower = {**ARMS, "ddp": 2.06, "ddp by nodes": 3.0, "ddp in slices": 4.0}
    text = tables({Point("m", "16 nodes", ""): ARMS, Point("m", "16 nodes", "rings"): slower})
    assert "| 14.2% (14.2% to 50.0%): explains a part |" in text
    assert "| rings | 50.0% (56.3%) |" in text
    assert "| daso B=4 | 25.0% |\n| daso B=2 | 16.7% |\n" in text


def test_the_steady_state_is_the_difference_of_two_lengths():
    """10 s of beginning and end in both; 2 s a sample between them."""
    assert steady({16: 42.0, 48: 106.0}) == 2.0
    assert steady({48: 106.0}) is None


def test_only_runs_of_the_study_count_and_each_once(make_run: Callable[..., Path], tmp_path: Path):
    place = {"arm": "ddp", "size": "4 nodes", "assumption": ""}
    results = tmp_path / "results"

    def of(study: str, train_s: float, thousands: int, seed: int = 0) -> None:
        make_run(
            results,
            "ddp",
            seed,
            [0.5] * thousands,
            target=None,
            study=study,
            place=place,
            train={"max_steps": thousands},
            train_s=train_s / thousands,
        )

    of("other", 50.0, 1)
    of("paper_daso", 50.0, 1)
    loaded = [load_run(path, path.name) for path in find_runs(results)]
    assert times(loaded) == {Point(loaded[0].name("model"), "4 nodes", ""): {}}, "of one length only"
    of("paper_daso", 110.0, 3)
    runs = [load_run(path, path.name) for path in find_runs(results)]
    ((point, arms),) = times(runs).items()
    assert (point.size, arms["ddp"]) == ("4 nodes", 60.0 / 2000)
    of("paper_daso", 111.0, 3, seed=1)
    with pytest.raises(ValueError, match="a second run of 'ddp' with 3000 samples"):
        times([load_run(path, path.name) for path in find_runs(results)])


@pytest.mark.parametrize("arm", ["ddp", UNCOVERED])
def test_a_step_alone_is_one_beside_which_nothing_is_summed(
    make_run: Callable[..., Path], tmp_path: Path, arm: str
):
    """Else the computing part holds what sums beside it cost, and r_max would be no bound."""
    for thousands in (1, 3):
        place = {"arm": arm, "size": "4 nodes", "assumption": ""}
        train = {"max_steps": thousands}
        make_run(
            tmp_path, "ddp", 0, [0.5] * thousands, target=None, study="paper_daso", place=place, train=train
        )
    ((_, arms),) = times([load_run(path, path.name) for path in find_runs(tmp_path)]).items()
    assert (ALONE in arms) == (arm == UNCOVERED)


def test_nobody_can_gain_more_than_what_is_not_computing():
    assert bound(ARMS) == pytest.approx(1 - 0.9 / 1.2)
    assert bound({arm: time for arm, time in ARMS.items() if arm != "a step alone"}) is None
