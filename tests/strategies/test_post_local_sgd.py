"""Post-local SGD: the switch, the rounds that follow it, units, labels and refusals."""

from pathlib import Path
from typing import Any

import pytest
import torch
from harness import drive
from periodic import averaged_after, scenario
from real_runs import entry  # pyright: ignore[reportMissingImports] (another folder of tests)

from daso_bench.runner.conformance.driver import drive as walk
from daso_bench.strategies.post_local_sgd import PostLocalSGD, PostLocalSGDConfig
from daso_bench.strategies.progress import Progress


def post_local(**keys: Any) -> PostLocalSGD:
    return PostLocalSGD(PostLocalSGDConfig(**keys))


# ------------------------------------------------------------------ the switch


def test_the_first_average_comes_one_period_after_the_switch():
    # 2 ranks of 4 samples: 10 steps are 80 samples.
    histories = walk(scenario(post_local(switch_samples=80, sync_every=4), [1, 1], steps=20))
    for history in histories:
        assert averaged_after(history) == [14, 18]
        assert history.summary["switched_after_steps"] == 10
        assert history.summary["steps_of_phase"] == {"synchronous": 10, "local": 10}
        assert history.summary["steps_of_last_partial_round"] == 2
        assert history.verbs("step") == {"gradients.all_reduce": 10, "parameters.all_reduce": 2}
        assert [step for step, met in history.met.items() if met] == [*range(1, 11), 14, 18, 20]
    for step in range(1, 21):
        equal = torch.equal(histories[0].parameters[step], histories[1].parameters[step])
        assert equal == (step <= 10 or step in (14, 18))


@pytest.mark.parametrize(("switch", "synchronous"), [(79, 10), (80, 10), (81, 11), (0, 0), (1, 1)])
def test_a_step_is_synchronous_if_it_begins_before_the_switch(switch, synchronous):
    history = walk(scenario(post_local(switch_samples=switch, sync_every=4), [1, 1], steps=12))[0]
    assert history.summary["steps_of_phase"].get("synchronous", 0) == synchronous


@pytest.mark.parametrize(
    ("first_decay", "switch"), [(None, 48), (24, 24), (0, 0), (96, 96)], ids=["none", "24", "0", "96"]
)
def test_auto_switches_at_the_first_step_decay_or_else_at_half_of_the_samples(first_decay, switch):
    traces = drive(lambda: post_local(switch_samples=0), [1, 1], steps_per_epoch=1)
    strategy = post_local()
    progress = Progress(2, 6, budget=97 if first_decay is None else 96, first_decay=first_decay)
    strategy.setup(traces[0].replica, traces[0].comm, progress)
    assert strategy.summary()["switch_samples"] == switch


@pytest.mark.parametrize("unit", ["rank", "node"])
def test_a_stop_request_is_known_in_its_step_before_the_switch_and_at_the_next_average_after_it(unit):
    def stop_request(rank: int, step: int) -> bool:
        return rank == 3 and step in (2, 4, 9)

    strategy = post_local(switch_samples=4 * 16, sync_every=4, unit=unit)
    for history in walk(scenario(strategy, [2, 2], steps=16, stop_request=stop_request)):
        assert [step for step, agreed in history.agreed.items() if agreed] == [3, 8, 12]


# ------------------------------------------------------------------ what is said, what is refused


def test_labels_name_a_phase_that_did_not_occur():
    def labels(target_step: int | None = None, **keys: Any) -> list[str]:
        history = walk(scenario(post_local(**keys), [1, 1], steps=12))[0]
        return history.strategy.labels(target_step)

    assert labels(switch_samples=32, sync_every=4) == []
    assert labels(switch_samples=97) == ["ended before its switch at 97 samples: all steps were synchronous"]
    one_node = scenario(post_local(switch_samples=0, sync_every=4, unit="node"), [3], steps=20)
    assert walk(one_node)[0].labels == ["one node: all steps were synchronous"]
    assert labels(4, switch_samples=32, sync_every=4) == ["no local step before the target"]
    assert labels(7, switch_samples=32, sync_every=4) == ["no average before the target"]
    assert labels(8, switch_samples=32, sync_every=4) == []
    assert labels(switch_samples=32, sync_every=8) == ["fewer than two complete rounds (1)"]


# ------------------------------------------------------------------ over gloo


def test_parameters_equal_those_of_pytorchs_post_local_optimizer_in_every_step(tmp_path: Path):
    outcome = entry("gloo_entries_averaging:post_local", 4, tmp_path)
    assert outcome.status == "finished", outcome.details
    assert outcome.summary["averaged_after"] == {"rank": [14, 18], "node": [14, 18]}
