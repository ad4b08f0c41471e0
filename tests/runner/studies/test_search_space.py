"""The space that tuning searches: keys from a run's own values, points, and runs with new settings."""

from typing import Any

import pytest
from runs import NAMES, PERIODS, config, strategy_class

from daso_bench.runner.config.optimizers import LARS, SGD
from daso_bench.runner.config.schedules import Cosine
from daso_bench.runner.studies.search_space import Key, settings_of, sobol_points, space_of, with_settings
from daso_bench.strategies.errors import ConfigError

RATE = Key(name="optimizer.lr", words="", low=0.1, high=6.4, log=True)
SHARE = Key(name="schedule.warmup_epochs", words="", high=2.0)
DECAY = Key(name="optimizer.weight_decay", words="", low=1e-6, high=1e-2, log=True, zero=0.25)
PERIOD = Key(name="strategy.sync_every", words="", values=(2, 4, 8))


@pytest.mark.parametrize(
    ("key", "points", "values"),
    [
        (RATE, (0.0, 0.5, 0.75), [0.1, 0.8, 2.263]),  # even in ratios
        (SHARE, (0.0, 0.5, 0.75), [0.0, 1.0, 1.5]),  # even in differences
        (DECAY, (0.0, 0.249, 0.25, 0.625), [0.0, 0.0, 1e-6, 1e-4]),  # 0 in a quarter of its range
        (PERIOD, (0.0, 0.33, 0.34, 0.66, 0.67, 0.999), [2, 2, 4, 4, 8, 8]),  # equal parts
    ],
)
def test_a_key_maps_a_coordinate_to_a_value(key: Key, points: tuple[float, ...], values: list[Any]):
    assert [key.at(u) for u in points] == values


def test_points_are_even_fixed_by_the_study_and_fewer_are_the_first_of_more():
    for dimension in zip(*sobol_points("mission", 16), strict=True):
        assert sorted(int(4 * u) for u in dimension) == [0] * 4 + [1] * 4 + [2] * 4 + [3] * 4
    assert sobol_points("mission", 16)[:8] == sobol_points("mission", 8)
    assert sobol_points("mission", 8) != sobol_points("other", 8)


def test_trial_0_is_the_default_and_a_key_that_is_missing_moves_no_other():
    points = [(0.5,) * 6, (0.0, 0.5, 0.625, 0.34, 0.9, 0.9)]
    values = {RATE.name: 0.1, SHARE.name: 1.0, DECAY.name: 1e-4, PERIOD.name: 4}
    assert settings_of([RATE, SHARE, DECAY, PERIOD], points) == [{}, values]
    assert settings_of([RATE, None, DECAY], points)[1] == {RATE.name: 0.1, DECAY.name: 1e-4}


def keys(**run: Any) -> dict[str, Key]:
    return {key.name: key for key in space_of(config(**run)) if key is not None}


def test_the_weight_decay_goes_from_a_tenth_to_ten_times_the_default_or_from_none_up():
    decay = keys(optimizer=LARS(weight_decay=1e-4))["optimizer.weight_decay"]
    assert (decay.at(0.0), decay.at(1 - 1e-12)) == (1e-5, 1e-3)
    none = keys(optimizer=SGD(weight_decay=0.0))["optimizer.weight_decay"]
    assert [none.at(u) for u in (0.0, 0.2, 0.25, 1 - 1e-12)] == [0.0, 0.0, 1e-6, 1e-2]


def test_a_run_takes_the_settings_of_a_trial_and_keeps_the_rest():
    run = config("daso", schedule=Cosine())
    settings = {"optimizer.lr": 0.2, "schedule.warmup_epochs": 0.5, "strategy.sync_every": 8}
    found = with_settings(run, settings)
    assert (found.optimizer.lr, found.schedule.warmup_epochs, found.strategy.sync_every) == (0.2, 0.5, 8)
    assert with_settings(run, {}) == run
    defaults = {"optimizer.lr": 0.05, "schedule.warmup_epochs": 1.0, "strategy.sync_every": 4}
    assert with_settings(found, defaults) == run


@pytest.mark.parametrize(
    ("tuned", "said"),
    [
        ((("sync_evry", (1, 2)),), "sync_evry=.*no such key"),
        ((("sync_every", ()),), "or no value"),
        ((("sync_every", (1, 2)),) * 4, "4 keys; must be 3 at most"),
    ],
)
def test_a_strategy_that_declares_what_it_has_not_is_told(
    tuned: Any, said: str, monkeypatch: pytest.MonkeyPatch
):
    run = config("daso")
    monkeypatch.setattr(run.strategy_class, "tuned", tuned)
    with pytest.raises(ConfigError, match=said):
        space_of(run)


@pytest.mark.parametrize("name", NAMES)
def test_a_strategy_declares_keys_that_it_has_and_accepts_each_value_beside_the_defaults(name: str):
    space_of(config(name, keys=PERIODS.get(name)))  # refuses what the test above names
    kind = strategy_class(name)
    for key, values in kind.tuned:
        assert len(set(values)) == len(values) >= 2
        for value in values:
            assert getattr(kind.Config(**{key: value}), key) == value
