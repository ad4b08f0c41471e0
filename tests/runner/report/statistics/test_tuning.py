"""Equal tuning: points and keys of the search, the trial that wins, regret, and that tuning was fair."""

import math

import pytest

from daso_bench.runner.report.statistics.ratio import Times
from daso_bench.runner.report.statistics.tuning import (
    Key,
    Trial,
    check_fair,
    choose_baseline,
    coordinates,
    in_common,
    regret,
    settings,
    winner,
)
from daso_bench.strategies.errors import ConfigError

RATE = Key(name="optimizer.lr", said="", low=0.1, high=6.4, log=True)
SHARE = Key(name="schedule.warmup_epochs", said="", high=2.0)
DECAY = Key(name="optimizer.weight_decay", said="", low=1e-6, high=1e-2, log=True, zero=0.25)
PERIOD = Key(name="strategy.sync_every", said="", values=(2, 4, 8))


@pytest.mark.parametrize(
    ("key", "values"),
    [
        (RATE, {0.0: 0.1, 0.5: 0.8, 0.75: 2.263}),  # even in ratios
        (SHARE, {0.0: 0.0, 0.5: 1.0, 0.75: 1.5}),  # even in differences
        (DECAY, {0.0: 0.0, 0.249: 0.0, 0.25: 1e-6, 0.625: 1e-4}),  # none in a quarter of its range
        (PERIOD, {0.0: 2, 0.33: 2, 0.34: 4, 0.66: 4, 0.67: 8, 0.999: 8}),
    ],
)
def test_where_in_its_range_a_value_lies(key: Key, values: dict[float, float]):
    assert {u: key.at(u) for u in values} == values


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


def test_the_faster_on_tuning_seeds_is_the_baseline() -> None:
    for flat, hierarchical, expected in (
        ((110,), (100,), "hierarchical"),
        ((100, 90), (100, 99), "flat"),
        ((100,), (100,), "flat"),
    ):
        times = [("flat", Times(flat)), ("hierarchical", Times(hierarchical))]
        assert choose_baseline(times) == expected


@pytest.mark.parametrize("tuning", [[], [("flat", ())], [("flat", (1.0,)), ("hierarchical", (1.0, 2.0))]])
def test_unequal_tuning_budgets_choose_no_baseline(tuning: list[tuple[str, tuple[float, ...]]]) -> None:
    with pytest.raises(ConfigError, match="tuning runs"):
        choose_baseline([(name, Times(seconds)) for name, seconds in tuning])


def test_a_default_of_120_s_against_a_tuned_100_s_is_a_regret_of_20_percent() -> None:
    one = regret(Times((120.0,)), Times((100.0,)))
    assert one.point == pytest.approx(0.20)
    assert one.interval is None


def test_the_interval_of_the_regret_is_that_of_the_ratio_minus_1() -> None:
    found = regret(Times((100.0, 104.0, 96.0, 108.0, 92.0)), Times((80.0, 84.0, 76.0, 86.0, 75.0)))
    assert found.interval is not None
    assert (found.point, found.interval.low, found.interval.high) == pytest.approx(
        (0.2467, 0.1393, 0.3642), abs=1e-4
    )


def test_a_regret_needs_both_sides() -> None:
    with pytest.raises(ConfigError, match="no runs"):
        regret(Times(()), Times((100.0,)))


def test_unequal_trials_and_seeds_that_are_tuned_on_and_scored_are_refused() -> None:
    check_fair({"ddp": 16, "daso": 16}, [1, 2], [3, 4])
    with pytest.raises(ConfigError, match="ddp 16, daso 32; must be equal"):
        check_fair({"ddp": 16, "daso": 32}, [1, 2], [3, 4])
    with pytest.raises(ConfigError, match=r"seeds \[2\]"):
        check_fair({"ddp": 16, "daso": 16}, [1, 2], [2, 3])
