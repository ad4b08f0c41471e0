"""Target crossings: scored midpoints by hand; NaN never crosses and is never best (FA2)."""

import math

import pytest

from daso_bench.runner.records import json_lines
from daso_bench.runner.records.target_crossing import best, crossing


def evaluations(*accuracies: float, train_s: float = 90.0, eval_s: float = 10.0) -> list[json_lines.Row]:
    """FA2's dip in our schema: cumulative clocks, 1,000 samples an epoch."""
    return [
        {
            "kind": "evaluation",
            "attempt": 1,
            "step": 10 * number,
            "samples": 1000 * number,
            "accuracy": accuracy,
            "train_s": train_s * number,
            "wall_s": (train_s + eval_s) * number,
        }
        for number, accuracy in enumerate(accuracies, 1)
    ]


def test_crossing_by_hand() -> None:
    rows = evaluations(0.60, 0.76, 0.74, 0.78)
    first = crossing(rows, 0.75)
    assert first is not None
    # The running median of three: .60, .74, .76, .78.
    assert (first.index, first.after_s, first.stamp_s, first.wall_s) == (2, 180.0, 270.0, 300.0)
    assert first.scored_s == pytest.approx(220.45, abs=0.005)
    assert first.scored_samples == pytest.approx(math.sqrt(2000 * 3000))
    assert not first.at_first
    assert crossing(rows, 0.79) is None


def test_a_curve_that_never_falls_crosses_at_its_first_evaluation_at_the_target() -> None:
    crossed = crossing(evaluations(0.60, 0.76, 0.77, 0.78), 0.75)
    assert crossed is not None
    assert (crossed.index, crossed.after_s, crossed.stamp_s) == (1, 90.0, 180.0)
    assert crossed.scored_s == pytest.approx(127.28, abs=0.005)


@pytest.mark.parametrize(
    ("accuracies", "place"),
    [
        ((0.6, 0.8, 0.6, 0.6, 0.8), 4),  # stop=first ends here: the last evaluation counts twice
        ((0.6, 0.8, 0.6, 0.6, 0.6), None),  # one lucky evaluation
        ((0.6, 0.8, 0.6, 0.8, 0.8), 2),  # stop=confirmed ends here
        ((0.6, 0.6, 0.6, 0.8, 0.8), 3),
        ((0.8,), 0),
        ((0.8, 0.6, 0.6), None),
        ((0.8, 0.6, 0.8), 1),
        ((), None),
    ],
)
def test_two_of_three_evaluations_in_a_row_decide(accuracies: tuple[float, ...], place: int | None) -> None:
    crossed = crossing(evaluations(*accuracies), 0.75)
    assert (None if crossed is None else crossed.index) == place


def test_crossing_at_the_first_evaluation_scores_its_stamp() -> None:
    crossed = crossing(evaluations(0.8, 0.9), 0.75)
    assert crossed is not None
    assert (crossed.at_first, crossed.scored_s, crossed.scored_samples) == (True, 90.0, 1000)


def test_a_model_that_took_long_to_make_does_not_turn_the_interval_of_a_crossing_round() -> None:
    """T_train of an evaluation holds the making of its own model alone: its stamp may be the earlier one."""
    rows = evaluations(0.6, 0.76)
    rows[0]["train_s"] = rows[1]["train_s"] + 4.0
    crossed = crossing(rows, 0.75)
    assert crossed is not None
    assert (crossed.after_s, crossed.stamp_s, crossed.scored_s) == (180.0, 180.0, pytest.approx(180.0))


def test_nan_never_crosses_and_is_never_best() -> None:
    for accuracies in ((math.nan, 0.6, 0.7), (0.6, math.nan, 0.7), (0.6, 0.7, math.nan)):
        rows = evaluations(*accuracies)
        assert crossing(rows, 0.75) is None
        best_row = best(rows)
        assert best_row is not None
        assert best_row["accuracy"] == 0.7


def test_a_loss_must_be_at_most_the_target() -> None:
    rows = [
        {"train_s": 10.0 * n, "samples": n, "loss": loss} for n, loss in enumerate((2.0, math.nan, 0.4), 1)
    ]
    crossed = crossing(rows, 0.5, metric="loss")
    assert crossed is not None
    assert (crossed.index, crossed.after_s, crossed.stamp_s) == (2, 20.0, 30.0)
    assert crossing(rows, 0.3, metric="loss") is None
