"""The least share of steps that wait for a global sum: what strategies state against what their runs did."""

from collections.abc import Callable
from typing import Any

import pytest
from harness import drive

from daso_bench.strategies.base import Strategy
from daso_bench.strategies.daso import DASO, DASOConfig
from daso_bench.strategies.ddp import DDP, DDPConfig
from daso_bench.strategies.diloco import DiLoCo, DiLoCoConfig
from daso_bench.strategies.ednncomm import EDNNComm, EDNNCommConfig
from daso_bench.strategies.local_sgd import LocalSGD, LocalSGDConfig
from daso_bench.strategies.post_local_sgd import PostLocalSGD, PostLocalSGDConfig
from daso_bench.strategies.progress import Plan
from daso_bench.strategies.slowmo import SlowMo, SlowMoConfig
from daso_bench.strategies.topology import Topology

EPOCHS, PER_EPOCH = 6, 10
STEPS = EPOCHS * PER_EPOCH
NODES = [2, 2]
PLAN = Plan(Topology.of(tuple(NODES)), EPOCHS, 4, PER_EPOCH, STEPS)


def stated(kind: type[Strategy], config: Any, steps: int = STEPS, plan: Plan = PLAN) -> float:
    return kind.communication_share(config, plan, steps)


def averages(make: Callable[[], Strategy]) -> float:
    """Blocking averages over all nodes of a run in virtual time, as a share of its steps."""
    run = drive(make, NODES, epochs=EPOCHS, steps_per_epoch=PER_EPOCH, losses=lambda epoch: 1 / (1 + epoch))
    summary = run[0].strategy.summary()
    rounds = summary.get("rounds", 0)
    return (rounds + sum(row.get("averages", 0) for row in run[0].records)) / STEPS


@pytest.mark.parametrize(
    ("kind", "config", "expected"),
    [
        # Two blocking epochs of ten steps, and an average at the end of each of the four others.
        (DASO, DASOConfig(), (2 * 10 + 4) / 60),
        # Nothing is waited for, so each of the four others averages in batches 0, 4, 8 and 9.
        (DASO, DASOConfig(wait_batches=0), (2 * 10 + 4 * 3) / 60),
        (DASO, DASOConfig(warmup_epochs=0, cooldown_epochs=0), 6 / 60),
        (LocalSGD, LocalSGDConfig(sync_every=7), 8 / 60),
        (SlowMo, SlowMoConfig(sync_every=12), 5 / 60),
        (DiLoCo, DiLoCoConfig(sync_every=20), 3 / 60),
        (EDNNComm, EDNNCommConfig(), 6 / 60),
        (EDNNComm, EDNNCommConfig(sync_every=4), 15 / 60),
        (PostLocalSGD, PostLocalSGDConfig(sync_every=10, switch_samples=0), 6 / 60),
    ],
)
def test_a_run_waits_at_least_as_often_as_its_strategy_states(
    kind: type[Strategy], config: Any, expected: float
):
    assert stated(kind, config) == pytest.approx(expected)
    done = averages(lambda: kind(config))
    assert expected <= done < expected + 0.1


def test_up_to_the_target_counts_what_comes_before_it():
    """DASO's warm-up weighs more in a run that is judged before its cool-down."""
    config = DASOConfig(warmup_epochs=1, cooldown_epochs=1)
    assert stated(DASO, config, steps=10) == 1
    assert stated(DASO, config, steps=30) == pytest.approx((10 + 2) / 30)
    assert stated(DASO, config, steps=50) == pytest.approx((10 + 4) / 50)
    assert stated(DASO, config, steps=60) == pytest.approx((20 + 4) / 60)


@pytest.mark.parametrize(
    ("kind", "config"),
    [
        (DDP, DDPConfig()),
        (LocalSGD, LocalSGDConfig(period_rule="qsr", qsr_alpha=0.1)),
        (EDNNComm, EDNNCommConfig(exchange="sliced")),
    ],
    ids=["every step, at any cost", "rounds of unknown length", "cheaper sums"],
)
def test_what_is_not_known_leaves_the_bound_of_all_arms(kind: type[Strategy], config: Any):
    assert stated(kind, config) == 0


def test_half_the_bytes_count_half_and_one_node_waits_for_no_other():
    config = DASOConfig(transport_dtype="bfloat16")
    assert stated(DASO, config) == pytest.approx((20 / 2 + 4) / 60)
    assert stated(DASO, DASOConfig(), plan=Plan(Topology.of((4,)), EPOCHS, 4, PER_EPOCH, STEPS)) == 0
    assert stated(DASO, DASOConfig(), plan=Plan(Topology.of((2, 2)), EPOCHS, 4)) == 0
