"""The search for better settings: its points, its keys, and which trial wins."""

import math

import pytest

from daso_bench.runner.report.statistics.search import Key, Trial, coordinates, in_common, settings, winner
from daso_bench.strategies.errors import ConfigError

RATE = Key(name="optimizer.lr", said="", low=0.1, high=6.4, log=True)
SHARE = Key(name="schedule.warmup_epochs", said="", high=2.0)
DECAY = Key(name="optimizer.weight_decay", said="", low=1e-6, high=1e-2, log=True, zero=0.25)
PERIOD = Key(name="strategy.sync_every", said="", values=(2, 4, 8))


def test_a_rate_is_even_in_ratios_and_a_share_in_differences():
    assert [RATE.at(u) for u in (0.0, 0.5, 0.75)] == [0.1, 0.8, 2.263]
    assert [SHARE.at(u) for u in (0.0, 0.5, 0.75)] == [0.0, 1.0, 1.5]


def test_a_decay_that_is_none_by_default_stays_none_in_a_quarter_of_its_range():
    assert [DECAY.at(u) for u in (0.0, 0.249, 0.25, 0.625)] == [0.0, 0.0, 1e-6, 1e-4]


def test_each_value_of_a_list_has_an_equal_part():
    assert [PERIOD.at(u) for u in (0.0, 0.33, 0.34, 0.66, 0.67, 0.999)] == [2, 2, 4, 4, 8, 8]


def test_every_quarter_of_each_dimension_has_a_quarter_of_the_points():
    for dimension in zip(*coordinates("mission", 16), strict=True):
        assert sorted(int(4 * u) for u in dimension) == [0] * 4 + [1] * 4 + [2] * 4 + [3] * 4


def test_points_are_fixed_by_the_study_and_fewer_trials_are_the_first_of_more():
    assert coordinates("mission", 16)[:8] == coordinates("mission", 8)
    assert coordinates("mission", 8) != coordinates("other", 8)


@pytest.mark.parametrize("count", [0, 2, 6, 15, -4])
def test_other_numbers_of_trials_than_powers_of_two_are_refused(count: int):
    with pytest.raises(ConfigError, match=f"study.tune_trials={count}: must be a power of two, 4 or more"):
        coordinates("mission", count)


def test_trial_0_is_the_default_and_a_key_that_is_missing_moves_no_other():
    points = [(0.5,) * 6, (0.0, 0.5, 0.625, 0.34, 0.9, 0.9)]
    assert settings([RATE, SHARE, DECAY], [PERIOD], points) == [
        {},
        {
            "optimizer.lr": 0.1,
            "schedule.warmup_epochs": 1.0,
            "optimizer.weight_decay": 1e-4,
            "strategy.sync_every": 4,
        },
    ]
    assert settings([RATE, None, DECAY], [], points)[1] == {
        "optimizer.lr": 0.1,
        "optimizer.weight_decay": 1e-4,
    }


def test_a_strategy_has_three_keys_at_most():
    with pytest.raises(ConfigError, match="4 own keys"):
        settings([RATE, SHARE, DECAY], [PERIOD] * 4, [(0.5,) * 6])


def trial(number: int, crossed_s: float | None = None, metric: float | None = 0.9, state: str = "finished"):
    return Trial(number=number, state=state, crossed_s=crossed_s, metric=metric, train_s=10.0)


def test_the_shortest_time_to_the_target_wins_and_any_is_better_than_none():
    found = winner([trial(0, None, 0.99), trial(1, 8.0, 0.91), trial(2, 7.0, 0.9), trial(3, 7.0, 0.99)])
    assert found is not None
    assert found.number == 2, "of equals the first"


def test_where_none_crossed_the_best_last_metric_wins_and_no_number_is_the_worst():
    trials = [trial(0, metric=math.nan), trial(1, metric=0.7), trial(2, metric=0.8), trial(3, metric=None)]
    highest, lowest = winner(trials), winner(trials, lower=True)
    assert highest is not None
    assert lowest is not None
    assert (highest.number, lowest.number) == (2, 1)


def test_what_failed_or_diverged_never_wins():
    found = winner([trial(0, 5.0, state="diverged"), trial(1, 6.0, state="failed"), trial(2, 9.0)])
    assert found is not None
    assert found.number == 2
    assert winner([trial(0, state="refused")]) is None


def test_baselines_are_compared_by_the_trials_that_crossed_in_both():
    flat = [trial(0, 110.0), trial(1, 50.0), trial(2), trial(3, 121.0)]
    nodes = [trial(0, 100.0), trial(1), trial(2, 10.0), trial(3, 110.0)]
    assert in_common({"flat": flat, "nodes": nodes}) == {"flat": [110.0, 121.0], "nodes": [100.0, 110.0]}


def test_without_a_common_crossing_the_time_of_all_work_counts_and_failed_trials_do_not():
    flat = [trial(0), trial(1, 3.0), trial(2, state="failed")]
    assert in_common({"flat": flat, "nodes": [trial(0), trial(1), trial(2)]}) == {
        "flat": [10.0, 10.0],
        "nodes": [10.0, 10.0],
    }
    assert in_common({"flat": [trial(0, state="refused")], "nodes": [trial(0)]}) == {"flat": [], "nodes": []}
