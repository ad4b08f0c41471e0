"""What is searched of a run: from its own values, alike for all arms; and runs with other settings."""

from dataclasses import dataclass
from typing import Any

import pytest
from runs import config

from daso_bench.runner.config.optimizers import LARS, SGD
from daso_bench.runner.config.schedules import Cosine
from daso_bench.runner.report.statistics.tuning import Key
from daso_bench.runner.studies.search_space import changed, described, space_of
from daso_bench.strategies.errors import ConfigError


def keys(**run: Any) -> dict[str, Key]:
    common, own = space_of(config(**run))
    return {key.name: key for key in (*common, *own) if key is not None}


def test_the_peak_rate_goes_from_an_eighth_to_eight_times_the_default():
    rate = keys(optimizer=SGD(lr=0.08))["optimizer.lr"]
    assert (rate.at(0.0), rate.at(0.5), rate.at(1 - 1e-12)) == (0.01, 0.08, 0.64)


def test_the_warm_up_goes_up_to_a_quarter_of_the_schedule():
    warmup = keys(schedule=Cosine(warmup_epochs=2.0), epochs=12)["schedule.warmup_epochs"]
    assert (warmup.at(0.0), warmup.at(1 - 1e-12)) == (0.0, 3.0)


def test_the_weight_decay_goes_from_a_tenth_to_ten_times_the_default_or_from_none_up():
    decay = keys(optimizer=LARS(weight_decay=1e-4))["optimizer.weight_decay"]
    assert (decay.at(0.0), decay.at(1 - 1e-12)) == (1e-5, 1e-3)
    none = keys(optimizer=SGD(weight_decay=0.0))["optimizer.weight_decay"]
    assert [none.at(u) for u in (0.0, 0.2, 0.25, 1 - 1e-12)] == [0.0, 0.0, 1e-6, 1e-2]


def test_arms_that_are_searched_alike_are_described_alike_whatever_their_strategy():
    assert (
        described(config("daso"))
        == described(config("ddp"))
        == (
            "optimizer.lr x 1/8 to 8, schedule.warmup_epochs 0 to 0.25 of the schedule, "
            "optimizer.weight_decay x 1/10 to 10"
        )
    )
    assert described(config("ddp", optimizer=SGD(weight_decay=0.0))) != described(config("ddp"))


def test_a_strategy_adds_the_keys_that_it_declares():
    assert [name for name in keys(strategy="daso") if name.startswith("strategy.")] == [
        "strategy.sync_every",
        "strategy.wait_batches",
        "strategy.staleness_weight",
    ]


def test_a_run_takes_the_settings_of_a_trial_and_keeps_the_rest():
    run = config("daso", schedule=Cosine())
    settings = {"optimizer.lr": 0.2, "schedule.warmup_epochs": 0.5, "strategy.sync_every": 8}
    found = changed(run, settings)
    assert (found.optimizer.lr, found.schedule.warmup_epochs, found.strategy.sync_every) == (0.2, 0.5, 8)
    assert changed(run, {}) == run
    assert (
        changed(found, {"optimizer.lr": 0.05, "schedule.warmup_epochs": 1.0, "strategy.sync_every": 4}) == run
    )


def test_what_the_strategy_refuses_of_a_trial_is_said():
    with pytest.raises(ConfigError, match=r"strategy\.wait_batches=2: must be <= strategy\.sync_every=1"):
        changed(config("daso"), {"strategy.sync_every": 1, "strategy.wait_batches": 2})
    with pytest.raises(ConfigError, match=r"strategy\.num_peers=2: must be <= 1"):
        changed(config("sgp", ranks=[1, 1]), {"strategy.num_peers": 2})


@dataclass(frozen=True, kw_only=True)
class Rateless:
    """An optimizer of somebody's own."""

    step_size: float = 0.1


def test_an_optimizer_without_a_rate_cannot_be_tuned():
    with pytest.raises(ConfigError, match="optimizer=Rateless: has no number lr to tune"):
        space_of(config(optimizer=Rateless()))


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
