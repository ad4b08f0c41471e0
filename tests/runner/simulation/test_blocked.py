"""Standing still for collectives, by the links they use: where two levels of sums spend their time."""

from pathlib import Path
from typing import Any

import pytest
from runs import Awkward, Dies, config, dies_after

from daso_bench.runner.communication.link_costs import AlphaBeta, Network
from daso_bench.runner.communication.traffic import Traffic
from daso_bench.runner.simulation.simulated_world import simulate
from daso_bench.strategies.topology import Topology


@pytest.mark.parametrize("strategy", ["ddp", "hsgd", "daso", "ednncomm", "lasgd", "sgp"])
def test_both_classes_together_are_what_was_exposed_and_waited(strategy: str):
    cfg = config(strategy, model=Awkward())
    done = simulate(
        cfg,
        cfg.dataset.load(),
        network=AlphaBeta(inter_latency_s=0.001, inter_bytes_per_s=1e6),
        step_time=lambda rank, n: 2_000_000 + 300_000 * rank,
    )
    parts = done.results[0].summary["parts_s"]
    blocked_s = sum(done.results[0].summary["blocked_s"].values())
    assert blocked_s == pytest.approx(parts["exposed"] + parts["waiting"], rel=1e-6)
    assert blocked_s > 0


def timed(strategy: str, network: Network, step_ns: int = 2_000_000, **keys: Any) -> dict[str, Any]:
    """The summary of a run of 2 nodes of 4 ranks whose steps all take the same time."""
    cfg = config(strategy, ranks=[4, 4], keys=keys, epochs=1)
    done = simulate(cfg, cfg.dataset.load(), network=network, step_time=lambda rank, samples: step_ns)
    return done.results[0].summary


@pytest.mark.parametrize(
    ("strategy", "keys", "flat"),
    [
        ("hsgd", {}, 0),
        ("hsgd", {"shared_weights": False}, 0),
        ("hsgd", {"level1": "collective"}, 0),
        ("hsgd", {"level2_algorithm": "linear"}, 0),
        ("ednncomm", {"sync_every": 1}, 0),
        # Its epoch's loss is summed over all ranks in one ring.
        ("daso", {"warmup_epochs": 1, "cooldown_epochs": 0, "allow_no_cycling": True}, 14 * 5e-3),
    ],
    ids=str,
)
def test_all_ranks_of_a_node_stand_still_for_their_leaders_sum_over_nodes(
    strategy: str, keys: dict[str, Any], flat: float
):
    """2(N-1) latencies of 5 ms a step: the leader in its sum, the others where they wait for it."""
    summary = timed(strategy, AlphaBeta(inter_latency_s=5e-3), **keys)
    assert summary["blocked_s"] == pytest.approx({"intra": 0, "inter": 6 * 10e-3 + flat}, abs=1e-9)


def test_by_tensors_the_barrier_behind_the_update_waits_for_the_others_sums():
    # Four messages of a node one after the other over its link: all have waited for the last.
    network = AlphaBeta(inter_latency_s=5e-3)
    for shared_weights in (True, False):
        summary = timed("hsgd", network, partition="tensor", shared_weights=shared_weights)
        messages = summary["calls"]["inter"] / 2 / 6  # of a node and step
        assert messages > 1
        assert summary["blocked_s"] == pytest.approx({"intra": 0, "inter": 6 * messages * 10e-3}, abs=1e-9)


def test_what_is_sent_inside_a_node_counts_there_also_where_its_receivers_waited_for_their_leader():
    # Reduce and broadcast among 4: a tree of 2 levels of 1 ms each.
    summary = timed("hsgd", AlphaBeta(intra_latency_s=1e-3, inter_latency_s=5e-3), level1="collective")
    assert summary["blocked_s"] == pytest.approx({"intra": 6 * 4e-3, "inter": 6 * 10e-3}, abs=1e-9)
    assert summary["parts_s"]["exposed"] + summary["parts_s"]["waiting"] == pytest.approx(6 * 14e-3)


def test_waiting_for_a_slower_rank_of_the_node_is_of_the_node():
    cfg = config("hsgd", ranks=[4, 4], epochs=1)
    done = simulate(
        cfg,
        cfg.dataset.load(),
        network=AlphaBeta(inter_latency_s=5e-3),
        step_time=lambda rank, samples: 6_000_000 if rank % 4 == 3 else 2_000_000,
    )
    blocked_s = done.results[0].summary["blocked_s"]
    assert blocked_s == pytest.approx({"intra": 6 * 4e-3 * 3 / 4, "inter": 6 * 10e-3}, abs=1e-9)


def test_a_group_counts_for_its_widest_link_and_a_message_for_the_widest_there_is():
    traffic = Traffic(Topology.of([2, 2]), rank=0)
    inside, across = (traffic.launch("gradients", members, 0) for members in ((0, 1), (0, 2)))
    traffic.block(inside, 0, 5)
    traffic.block(across, 10, 17, waited=3)
    traffic.block(-1, 20, 31)
    assert traffic.blocked_on == {"intra": 5, "inter": 18}
    alone = Traffic(Topology.of([2]), rank=0)
    alone.block(-1, 0, 4)
    assert alone.blocked_on == {"intra": 4}


def test_a_resumed_run_has_stood_still_as_long(tmp_path: Path):
    cfg = config("hsgd", model=Awkward(), checkpoint_every_samples=128)
    data, slow = cfg.dataset.load(), AlphaBeta(inter_latency_s=0.001, inter_bytes_per_s=1e6)
    whole = simulate(cfg, data, network=slow, checkpoints=tmp_path / "whole")
    with pytest.raises(Dies):
        simulate(cfg, data, network=slow, checkpoints=tmp_path / "broken", loop=dies_after(14))
    resumed = simulate(cfg, data, network=slow, checkpoints=tmp_path / "broken", attempt=2)
    blocked, wanted = (done.results[0].summary["blocked_s"] for done in (resumed, whole))
    assert blocked == pytest.approx(wanted, rel=1e-9)
    assert sum(wanted.values()) > 0
