"""Noise floors by the rules' hand-worked numbers; weak and wrong baselines, and placebos."""

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from scipy import stats
from simulated_studies import draw_logs

from daso_bench.runner.report.statistics.noise_floor import (
    Shift,
    clock_floor,
    fresh_floor,
    placebo_differs,
    pooled,
    shifts_of,
)
from daso_bench.runner.report.statistics.welch import Times, holm, welch

CALM = [0.01, -0.01, 0.02, -0.02, 0.0]
BIASED = [0.01, 0.03, 0.02, 0.02, 0.02]
SPREAD = (0.98, 0.99, 1.0, 1 / 0.99, 1 / 0.98)  # of geometric mean 1


def around(seconds: float) -> Times:
    return Times(tuple(seconds * share for share in SPREAD))


@pytest.mark.parametrize(("deltas", "expected", "biased"), [(CALM, 0.0198, False), (BIASED, 0.0292, True)])
def test_the_clock_floor_without_and_with_a_bias(deltas: list[float], expected: float, biased: bool) -> None:
    for sign in (1, -1):
        floor = clock_floor([sign * delta for delta in deltas])
        assert (floor.clock, floor.biased) == (pytest.approx(expected, abs=1e-4), biased)


@pytest.mark.parametrize(
    ("deltas", "fresh_s", "expected"), [(CALM, 97, 0.0309), (BIASED, 97, 0.0309), (CALM, 100, 0.0198)]
)
def test_the_noise_floor_is_the_larger_of_both(deltas: list[float], fresh_s: float, expected: float) -> None:
    for first, second in ((100, fresh_s), (fresh_s, 100)):
        fresh = fresh_floor(welch(around(first), around(second)))
        floor = replace(clock_floor(deltas), fresh=fresh)
        assert floor.floor == pytest.approx(expected, abs=1e-4)
        assert floor.missing == []
        assert floor.biased == (deltas is BIASED)


def test_a_missing_baseline_leaves_no_floor() -> None:
    fresh = fresh_floor(welch(around(100), around(97)))
    no_clock = replace(clock_floor(CALM[:2]), fresh=fresh)
    no_fresh = clock_floor(CALM)
    assert (no_clock.floor, no_clock.missing, no_clock.biased) == (None, ["the same seeds"], False)
    assert (no_fresh.floor, no_fresh.missing) == (None, ["fresh seeds"])


@pytest.mark.parametrize("missed", ["base", "fresh", "both"])
def test_a_run_that_missed_the_target_makes_no_floor(missed: str) -> None:
    """Its time is the budget, which the plan chose."""
    whole, short = Times((100, 100, 100)), Times((100, 100, 200), met=(True, True, False))
    ratio = welch(*(short if missed in (name, "both") else whole for name in ("base", "fresh")))
    assert fresh_floor(ratio) is None
    assert fresh_floor(welch(whole, whole)) is not None
    assert fresh_floor(None) is None


STORED = Times((1000.0, 1040.0, 960.0, 1080.0, 920.0, 1010.0, 990.0, 1030.0, 970.0, 1000.0))
# Section "guard": stored and new runs, then the shift in per cent that just becomes significant at each CV.
SHIFTS = [
    (stored, new, cv, shift)
    for stored, new, shifts in [
        (20, 10, (2.0, 3.3, 6.8)),
        (10, 5, (3.0, 5.0, 10.2)),
        (6, 3, (4.1, 6.9, 14.3)),
    ]
    for cv, shift in zip((0.03, 0.05, 0.10), shifts, strict=True)
]


def shift_of(runs: Times, stored: Times = STORED, sign: float = 1.0) -> Shift:
    (shift,) = shifts_of([(stored, runs)], sign=sign)
    return shift


def test_the_test_is_scipy_s_one_sided_pooled_t_test() -> None:
    new = Times((1050, 1100, 980, 1060, 1090))
    theirs: Any = stats.ttest_ind(new.logs, STORED.logs, alternative="greater")
    assert shift_of(new).p == pytest.approx(theirs.pvalue)
    assert shift_of(new, sign=-1).p == pytest.approx(1 - theirs.pvalue)


@pytest.mark.parametrize(("factor", "weak", "too_good"), [(1.2, True, False), (0.8, False, True)])
def test_more_samples_are_weak_and_fewer_too_good(factor: float, weak: bool, too_good: bool) -> None:
    runs = Times(tuple(factor * value for value in (1000, 1008, 992, 1004, 996)))
    assert shift_of(runs).log_shift == pytest.approx(math.log(factor), abs=2e-3)
    assert (shift_of(runs).flagged, shift_of(runs, sign=-1).flagged) == (weak, too_good)


def test_without_any_scatter_every_shift_counts_and_none_does_not() -> None:
    same = Times((100, 100, 100))
    assert [shift_of(Times((value, value)), same).flagged for value in (101, 100, 99)] == [True, False, False]


@pytest.mark.parametrize(("stored", "new", "cv", "shift"), SHIFTS)
def test_the_shifts_of_the_rules_are_flagged_half_of_the_time_and_none_in_one_of_twenty(
    stored: int, new: int, cv: float, shift: float
) -> None:
    rng = np.random.default_rng(13)
    old, runs = (draw_logs(rng, (10_000, number), cv) for number in (stored, new))
    flagged = [np.mean(pooled(old, runs + math.log1p(by))[1] < 0.05) for by in (0.0, shift / 100)]
    assert flagged[0] == pytest.approx(0.05, abs=0.01)
    assert flagged[1] == pytest.approx(0.50, abs=0.05)


def test_several_arms_are_corrected_by_holm_and_keep_their_own_p() -> None:
    arms = {"much": Times((800, 810, 790)), "some": Times((945, 950, 940)), "none": Times((1000, 1010, 990))}
    shifts = shifts_of([(STORED, runs) for runs in arms.values()], sign=-1)
    found = dict(zip(arms, shifts, strict=True))
    raw = {name: shift_of(runs, sign=-1).p for name, runs in arms.items()}
    assert {name: shift.p for name, shift in found.items()} == raw
    assert found["much"].adjusted == pytest.approx(3 * raw["much"])
    assert found["some"].adjusted == pytest.approx(max(2 * raw["some"], 3 * raw["much"]))
    assert found["none"].adjusted == pytest.approx(raw["none"])
    assert raw["some"] < 0.05 < found["some"].adjusted
    assert [name for name, shift in found.items() if shift.flagged] == ["much"]


@pytest.mark.parametrize(("stored", "new", "cv"), [(20, 10, 0.03), (20, 10, 0.10), (10, 5, 0.05)])
def test_seven_sound_arms_are_flagged_in_one_study_of_twenty(stored: int, new: int, cv: float) -> None:
    """Uncorrected in about one of four."""
    rng = np.random.default_rng(7)
    old, runs = draw_logs(rng, (10_000, 1, stored), cv), draw_logs(rng, (10_000, 7, new), cv)
    alone = pooled(old, runs, sign=-1.0)[1]
    adjusted = np.array([holm(each) for each in alone.tolist()])
    assert np.mean(alone.min(1) < 0.05) == pytest.approx(0.23, abs=0.02)
    assert np.mean(adjusted.min(1) < 0.05) == pytest.approx(0.05, abs=0.01)


@pytest.mark.parametrize(
    ("low", "high", "different"),
    [
        (0.97, 1.04, False),
        (1.02, 1.05, False),
        (1.021, 1.05, True),
        (0.95, 0.9803, True),
        (0.95, 0.981, False),
    ],
)
def test_a_placebo_is_different_only_outside_of_the_floor(low: float, high: float, different: bool) -> None:
    assert placebo_differs(low, high, 0.02) == different
