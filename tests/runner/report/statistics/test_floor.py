"""The noise floor, by the rules' hand-worked numbers."""

import pytest

from daso_bench.runner.report.statistics.floor import NoiseFloor, clock_floor, fresh_floor
from daso_bench.runner.report.statistics.ratio import Times, welch
from daso_bench.runner.report.statistics.reached import Reached, compare

CALM = [0.01, -0.01, 0.02, -0.02, 0.0]
BIASED = [0.01, 0.03, 0.02, 0.02, 0.02]
SPREAD = (0.98, 0.99, 1.0, 1 / 0.99, 1 / 0.98)  # of geometric mean 1


def around(seconds: float) -> Times:
    return Times(tuple(seconds * share for share in SPREAD))


def test_the_clock_floor_without_and_with_a_bias() -> None:
    calm, biased = clock_floor(CALM), clock_floor(BIASED)
    assert calm is not None
    assert calm.floor == pytest.approx(0.0198, abs=1e-4)
    assert not calm.biased
    assert biased is not None
    assert biased.floor == pytest.approx(0.0292, abs=1e-4)
    assert biased.biased


def test_the_clock_floor_does_not_ask_which_of_the_two_was_slower() -> None:
    there, back = clock_floor(BIASED), clock_floor([-delta for delta in BIASED])
    assert there is not None
    assert back is not None
    assert back.floor == pytest.approx(there.floor)
    assert back.biased


@pytest.mark.parametrize("deltas", [CALM, BIASED])
def test_the_noise_floor_is_the_larger_of_clock_and_fresh_seeds(deltas: list[float]) -> None:
    floor = NoiseFloor(clock=clock_floor(deltas), fresh=fresh_floor(welch(around(100), around(97))))
    assert floor.fresh is not None
    assert floor.fresh.floor == pytest.approx(0.0309, abs=1e-4)
    assert floor.floor == pytest.approx(0.0309, abs=1e-4)
    assert floor.missing == []
    assert floor.biased == (deltas is BIASED)
    swapped = fresh_floor(welch(around(97), around(100)))
    assert swapped is not None
    assert swapped.floor == pytest.approx(0.0309, abs=1e-4)


def test_the_clock_floor_counts_where_fresh_seeds_happen_to_stop_agreed() -> None:
    floor = NoiseFloor(clock=clock_floor(CALM), fresh=fresh_floor(welch(around(100), around(100))))
    assert floor.floor == pytest.approx(0.0198, abs=1e-4)


def test_a_missing_baseline_leaves_no_floor() -> None:
    fresh = fresh_floor(welch(around(100), around(97)))
    no_clock = NoiseFloor(clock=clock_floor(CALM[:2]), fresh=fresh)
    no_fresh = NoiseFloor(clock=clock_floor(CALM), fresh=None)
    assert no_clock.floor is None
    assert no_clock.missing == ["A′"]
    assert not no_clock.biased
    assert no_fresh.floor is None
    assert no_fresh.missing == ["A″"]


def test_fresh_seeds_that_part_beyond_their_interval_are_told() -> None:
    near, far = fresh_floor(welch(around(100), around(99))), fresh_floor(welch(around(100), around(50)))
    assert near is not None
    assert not near.misses_one
    assert far is not None
    assert far.misses_one


@pytest.mark.parametrize("missed", ["base", "fresh", "both"])
def test_a_run_that_missed_the_target_makes_no_floor(missed: str) -> None:
    """Its time is the budget, which the plan chose."""
    whole = Reached(seconds=(100, 100, 100), met=(True, True, True), budget_s=200)
    short = Reached(seconds=(100, 100, 150), met=(True, True, False), budget_s=200)
    found = compare(*(short if missed in (name, "both") else whole for name in ("base", "fresh")))
    assert fresh_floor(found) is None
    assert fresh_floor(compare(whole, whole)) is not None
    assert fresh_floor(None) is None
