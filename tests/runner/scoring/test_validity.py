"""What the evaluations' distance may change in training, by the rules' numbers."""

from collections.abc import Mapping

import pytest

from daso_bench.runner.scoring.validity import cadence

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
