"""The least share of steps that wait for a global sum: what strategies state against what their runs did."""

from typing import Any

import pytest
from harness import drive
from runs import strategy_class  # pyright: ignore[reportMissingImports] (another folder of tests)

from daso_bench.strategies.progress import Plan
from daso_bench.strategies.topology import Topology

EPOCHS, PER_EPOCH = 6, 10
STEPS = EPOCHS * PER_EPOCH
NODES = [2, 2]
PLAN = Plan(Topology.of(tuple(NODES)), EPOCHS, 4, PER_EPOCH, STEPS)


def stated(strategy: str, keys: dict[str, Any], steps: int = STEPS, plan: Plan = PLAN) -> float:
    kind = strategy_class(strategy)
    return kind.communication_share(kind.Config(**keys), plan, steps)


def averages(strategy: str, keys: dict[str, Any]) -> float:
    """Blocking averages over all nodes of a run in virtual time, as a share of its steps."""
    kind = strategy_class(strategy)
    run = drive(
        lambda: kind(kind.Config(**keys)),
        NODES,
        epochs=EPOCHS,
        steps_per_epoch=PER_EPOCH,
        losses=lambda epoch: 1 / (1 + epoch),
    )
    summary = run[0].strategy.summary()
    rounds = summary.get("rounds", 0)
    return (rounds + sum(row.get("averages", 0) for row in run[0].records)) / STEPS


@pytest.mark.parametrize(
    ("strategy", "keys", "expected"),
    [
        # Two blocking epochs of ten steps, and an average at the end of each of the four others.
        ("daso", {}, (2 * 10 + 4) / 60),
        # Nothing is waited for, so each of the four others averages in batches 0, 4, 8 and 9.
        ("daso", {"wait_batches": 0}, (2 * 10 + 4 * 3) / 60),
        ("daso", {"warmup_epochs": 0, "cooldown_epochs": 0}, 6 / 60),
        ("local_sgd", {"sync_every": 7}, 8 / 60),
        ("slowmo", {"sync_every": 12}, 5 / 60),
        ("diloco", {"sync_every": 20}, 3 / 60),
        ("ednncomm", {}, 6 / 60),
        ("ednncomm", {"sync_every": 4}, 15 / 60),
        ("post_local_sgd", {"sync_every": 10, "switch_samples": 0}, 6 / 60),
    ],
)
def test_a_run_waits_at_least_as_often_as_its_strategy_states(
    strategy: str, keys: dict[str, Any], expected: float
):
    assert stated(strategy, keys) == pytest.approx(expected)
    done = averages(strategy, keys)
    assert expected <= done < expected + 0.1


def test_up_to_the_target_counts_what_comes_before_it():
    """DASO's warm-up weighs more in a run that is judged before its cool-down."""
    keys = {"warmup_epochs": 1, "cooldown_epochs": 1}
    assert stated("daso", keys, steps=10) == 1
    assert stated("daso", keys, steps=30) == pytest.approx((10 + 2) / 30)
    assert stated("daso", keys, steps=50) == pytest.approx((10 + 4) / 50)
    assert stated("daso", keys, steps=60) == pytest.approx((20 + 4) / 60)


@pytest.mark.parametrize(
    ("strategy", "keys"),
    [
        ("ddp", {}),
        ("local_sgd", {"period_rule": "qsr", "qsr_alpha": 0.1}),
        ("ednncomm", {"exchange": "sliced"}),
    ],
    ids=["every step, at any cost", "rounds of unknown length", "cheaper sums"],
)
def test_what_is_not_known_leaves_the_bound_of_all_arms(strategy: str, keys: dict[str, Any]):
    assert stated(strategy, keys) == 0


def test_half_the_bytes_count_half_and_one_node_waits_for_no_other():
    assert stated("daso", {"transport_dtype": "bfloat16"}) == pytest.approx((20 / 2 + 4) / 60)
    assert stated("daso", {}, plan=Plan(Topology.of((4,)), EPOCHS, 4, PER_EPOCH, STEPS)) == 0
    assert stated("daso", {}, plan=Plan(Topology.of((2, 2)), EPOCHS, 4)) == 0
