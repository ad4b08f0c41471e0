"""What measuring costs: the clock's overhead and the evaluations' distance, by the rules' numbers."""

import math
from collections.abc import Mapping

import pytest

from daso_bench.runner.scoring.validity import cadence, clock_overhead
from daso_bench.strategies.errors import ConfigError


def around(mean: float, sd: float = 0.02, pairs: int = 30) -> list[float]:
    """Half of the ln ratios above ln `mean`, half below, of this deviation."""
    apart = sd * math.sqrt((pairs - 1) / pairs)
    return [math.log(mean) + sign * apart for sign in (1, -1)] * (pairs // 2)


@pytest.mark.parametrize(("mean", "limit", "valid"), [(1.010, 1.0163, True), (1.015, 1.0213, False)])
def test_thirty_pairs_around_one_percent_are_valid_and_around_one_and_a_half_refused(
    mean: float, limit: float, valid: bool
):
    found = clock_overhead(around(mean))
    assert found.mean == pytest.approx(mean)
    assert found.limit == pytest.approx(limit, abs=5e-5)
    assert found.valid is valid


def test_the_limit_itself_is_valid():
    assert clock_overhead([math.log(1.02)] * 30).limit == pytest.approx(1.02)
    assert clock_overhead([math.log(1.0199)] * 30).valid
    assert not clock_overhead([math.log(1.0201)] * 30).valid


@pytest.mark.parametrize(
    ("pairs", "steps", "said"), [(29, 20, "29 pairs of blocks"), (30, 19, "blocks of 19 steps")]
)
def test_too_few_pairs_or_steps_are_refused(pairs: int, steps: int, said: str):
    with pytest.raises(ConfigError, match=said):
        clock_overhead([0.01, -0.01] * 15 if pairs == 30 else [0.01] * pairs, steps=steps)


SAME = (0.0, 1e-12, -1e-12, 0.0, 0.0)


def test_on_the_virtual_clock_equal_means_equal():
    assert not cadence({0.25: SAME, 4.0: SAME}, virtual=True, floor=None).fails
    later = cadence({0.25: (0.0, 1e-6, 0.0), 4.0: SAME}, virtual=True, floor=0.5)
    assert later.fails
    assert later.largest == pytest.approx(1e-6, rel=1e-3)


def test_on_the_virtual_clock_a_run_that_is_late_is_not_hidden_by_one_that_is_early():
    assert cadence({4.0: (0.01, -0.01)}, virtual=True, floor=None).fails


@pytest.mark.parametrize(
    ("by_distance", "fails"),
    [
        ({0.25: (0.01, 0.02, 0.015, 0.01, 0.02), 4.0: (0.0,) * 5}, False),
        ({0.25: (0.03,) * 5, 4.0: (0.0,) * 5}, True),
        ({0.25: (0.0,) * 5, 4.0: (-0.03,) * 5}, True),
        ({0.25: (0.06, -0.06, 0.0, 0.02, -0.02), 4.0: (0.0,) * 5}, False),
    ],
)
def test_elsewhere_the_clock_floor_is_the_limit(by_distance: Mapping[float, tuple[float, ...]], fails: bool):
    found = cadence(by_distance, virtual=False, floor=0.02)
    assert found.judged
    assert found.fails is fails


@pytest.mark.parametrize(
    ("by_distance", "floor", "said"),
    [
        ({0.25: (0.1,) * 4, 4.0: (0.0,) * 5}, 0.02, "4 pairs of runs"),
        ({}, 0.02, "0 pairs"),
        ({4.0: (0.1,) * 5}, None, "no clock floor"),
    ],
)
def test_without_runs_or_a_floor_nothing_is_judged(
    by_distance: Mapping[float, tuple[float, ...]], floor: float | None, said: str
):
    found = cadence(by_distance, virtual=False, floor=floor)
    assert not found.fails
    assert said in found.why
