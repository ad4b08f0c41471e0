"""Operating characteristics of the verdicts, by simulation: what they say how often, how often falsely."""

from functools import cache
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from sharing import there
from simulated_studies import (
    Shares,
    Studies,
    cross,
    draw_logs,
    from_logs,
    shares,
    simulate,
    simulate_crossings,
)

from daso_bench.runner.report.statistics.noise_floor import clock_floor, fresh_floor, placebo_differs
from daso_bench.runner.report.statistics.welch import Times, welch

COUNT = 20_000
CVS = (0.03, 0.05, 0.10)
# Per cent contradicted at g = 1 / partly at (1+c)/2 / reproduced at c, by CV; largest P(wrong) of the nine.
TABLE = {
    (1.1, 5): (((59, 10, 17), (22, 0, 7), (4, 0, 2)), 2.2),
    (1.1, 10): (((93, 64, 36), (52, 4, 15), (11, 0, 4)), 2.4),
    (1.25, 5): (((100, 96, 63), (89, 52, 28), (33, 1, 9)), 2.3),
    (1.25, 10): (((100, 98, 95), (100, 94, 58), (70, 15, 18)), 2.4),
    (1.515, 5): (((100, 98, 98), (100, 98, 66), (87, 43, 22)), 2.3),
    (1.515, 10): (((100, 97, 100), (100, 98, 96), (100, 92, 47)), 2.6),
}


@cache
def studies(runs: int, cv: float) -> Studies:
    return simulate(runs, cv, COUNT)


def gains(value: float) -> tuple[float, float, float]:
    return 1.0, (1 + value) / 2, value


@cache
def share(value: float, runs: int, cv: float, gain: float) -> Shares:
    return shares(studies(runs, cv), value, gain)


@pytest.mark.parametrize(("value", "runs"), TABLE)
def test_the_operating_characteristics_are_those_of_the_rules(value: float, runs: int) -> None:
    expected, largest = TABLE[value, runs]
    for cv, percents in zip(CVS, expected, strict=True):
        one, half, full = (share(value, runs, cv, gain) for gain in gains(value))
        found = [100 * part for part in (one.contradicted, half.partly, full.reproduced)]
        assert found == pytest.approx(percents, abs=2), cv
    wrong = max(share(value, runs, cv, gain).wrong for cv in CVS for gain in gains(value))
    assert 100 * wrong == pytest.approx(largest, abs=0.6)
    assert wrong <= 0.05


@pytest.mark.parametrize(("value", "runs"), TABLE)
def test_more_noise_never_makes_a_study_more_conclusive(value: float, runs: int) -> None:
    for gain in gains(value):
        open_shares = [share(value, runs, cv, gain).inconclusive for cv in (*CVS, 0.30)]
        assert all(before <= after for before, after in pairwise(open_shares)), (gain, open_shares)


@pytest.mark.parametrize("runs", [5, 10])
@pytest.mark.parametrize("gain", np.linspace(0.8, 1.9, 12))
def test_no_true_gain_makes_verdicts_wrong_more_often_than_the_level_allows(runs: int, gain: float) -> None:
    for cv in (*CVS, 0.30):
        for value in (1.1, 1.25, 1.515):
            assert share(value, runs, cv, float(gain)).wrong <= 0.05, (cv, value)


def largest_wrong(made: list[Studies]) -> float:
    return 100 * max(
        shares(each, value, gain).wrong
        for each in made
        for value in (1.1, 1.25, 1.515)
        for gain in gains(value)
    )


@pytest.mark.parametrize("evaluations", [20, 30])
def test_verdicts_on_crossing_times_are_wrong_no_more_often(evaluations: int) -> None:
    made = [simulate_crossings(runs, cv, COUNT, evaluations=evaluations) for runs in (5, 10) for cv in CVS]
    assert largest_wrong(made) == pytest.approx(2.5, abs=0.6)


@pytest.mark.parametrize(("more", "expected"), [({"heavy_tails": True}, 2.4), ({"spread": 3.0}, 3.6)])
def test_neither_heavy_tails_nor_unequal_scatter_break_the_error_rate(
    more: dict[str, Any], expected: float
) -> None:
    made = [simulate(runs, cv, COUNT, **more) for runs in (5, 10) for cv in CVS]
    found = largest_wrong(made)
    assert found <= expected + 0.6
    assert found <= 5


@pytest.mark.parametrize("runs", [5, 10])
@pytest.mark.parametrize("cv", CVS)
def test_a_placebo_is_different_in_far_fewer_than_5_of_100_studies(runs: int, cv: float) -> None:
    made = studies(runs, cv)
    ends = made.interval()
    found, clock_alone, nothing = (
        100 * float(np.mean(placebo_differs(*ends, floor))) for floor in (made.floor, made.clock_floor, 0.0)
    )
    assert 0.3 <= found <= 0.8
    assert 1.2 <= clock_alone <= 3.7
    assert 4.0 <= nothing <= 5.4


def test_simulated_studies_are_scored_as_single_ones_are() -> None:
    rng = np.random.default_rng(3)
    base, fresh, arm = (draw_logs(rng, (20, 5), 0.05) for _ in range(3))
    deltas = rng.standard_normal((20, 5)) * 0.007
    widths = rng.uniform(0.0, 0.3, (20, 5))
    made = from_logs(base, fresh, arm, deltas, least=(0.0, (widths**2 / 12).mean(axis=1)))
    low, high = made.interval()
    for row in range(20):
        sides = [Times(tuple(np.exp(logs[row]))) for logs in (base, fresh)]
        mine = there(welch(sides[0], Times(tuple(np.exp(arm[row])), tuple(widths[row]))))
        clock, fresh_seeds = there(clock_floor(list(deltas[row])).clock), there(fresh_floor(welch(*sides)))
        assert (low[row], high[row]) == pytest.approx((mine.low, mine.high))
        assert (made.clock_floor[row], made.fresh_floor[row]) == pytest.approx((clock, fresh_seeds))
        assert made.floor[row] == pytest.approx(max(clock, fresh_seeds))


def test_a_crossing_is_scored_between_the_marks_around_it() -> None:
    logs = np.log(np.array([[1.0, 1.24, 1.3, 0.1]]))
    scored, squares = cross(logs, np.full((1, 4), 0.5), 0.5)
    # Marks at .25, .75, 1.25, 1.75; a crossing before the first has no width.
    assert np.exp(scored[0]) == pytest.approx(
        [np.sqrt(0.75 * 1.25), np.sqrt(0.75 * 1.25), np.sqrt(1.25 * 1.75), 0.25]
    )
    assert squares[0] * 12 == pytest.approx(
        [np.log(1.25 / 0.75) ** 2, np.log(1.25 / 0.75) ** 2, np.log(1.75 / 1.25) ** 2, 0.0]
    )
