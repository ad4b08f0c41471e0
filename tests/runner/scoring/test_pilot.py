"""The grid of targets around one that is known, without the pilots that chose it."""

import pytest

from daso_bench.runner.scoring.pilot import choose, grid_around, grid_step
from daso_bench.strategies.errors import ConfigError


def test_the_grid_of_a_target_on_two_small_splits():
    """0.95 of 288 and 360 samples: 1.7 points of error; 0.95 is a multiple of 0.025 and not of 0.02."""
    found = grid_around(0.95, 288, 360)
    assert grid_step(0.95, 288, 360) == 0.02
    assert (found.step, found.below, found.above, found.on_it) == (0.025, 0.925, 0.975, True)


@pytest.mark.parametrize(
    ("target", "splits", "step"),
    [
        (0.9, (288, 360), 0.025),
        (0.92, (5_000, 10_000), 0.005),
        (0.951, (10**9, 10**9), 0.001),
        (0.8, (5_000, 10_000), 0.01),
        (0.75, (360, 360), 0.05),
        (0.5, (100, 100), 0.1),
    ],
)
def test_the_step_is_the_smallest_round_number_above_the_error_that_the_target_is_a_multiple_of(
    target: float, splits: tuple[int, int], step: float
):
    assert grid_around(target, *splits).step == step


def test_it_finds_the_step_of_a_pilot_whose_target_lies_at_its_knee():
    curve = (0.1, 0.5, 0.9, 0.93, 0.945, 0.95, 0.952)
    for splits in [(288, 360), (5_000, 10_000), (100, 2_000), (10**9, 10**9)]:
        chosen = choose([curve] * 10, [1.0] * 10, *splits)
        found = grid_around(chosen.value, *splits)
        assert (found.below, found.above) == chosen.neighbours, splits


def test_a_target_on_no_grid_keeps_its_distance_and_is_told_apart():
    found = grid_around(0.9371, 288, 360)
    assert (found.step, found.below, found.above, found.on_it) == (0.02, 0.9171, 0.9571, False)


def test_no_neighbour_is_beyond_what_can_be_reached():
    assert grid_around(0.99, 288, 360).above is not None
    assert grid_around(1.0, 288, 360).above is None
    assert grid_around(0.05, 20, 20).below is None


@pytest.mark.parametrize(("target", "splits"), [(0.0, (10, 10)), (1.2, (10, 10)), (0.5, (0, 10))])
def test_what_is_no_target_has_no_grid(target: float, splits: tuple[int, int]):
    with pytest.raises(ConfigError, match="must be"):
        grid_around(target, *splits)
