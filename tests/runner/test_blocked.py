"""Standing still for collectives, by the links they use: where two levels of sums spend their time."""

from pathlib import Path
from typing import Any

import pytest
from runs import Awkward, Dies, config, dies_after

from daso_bench.runner.network import AlphaBeta
from daso_bench.runner.simulated_world import simulate
from daso_bench.runner.traffic import Traffic
from daso_bench.strategies.topology import Topology


def blocked(strategy: str, **keys: Any) -> tuple[dict[str, float], dict[str, float]]:
    """`blocked_s` and `parts_s` of a run whose devices differ by rank."""
    cfg = config(strategy, model=Awkward(), **keys)
    done = simulate(
        cfg,
        cfg.dataset.load(),
        network=AlphaBeta(inter_latency_s=0.001, inter_bytes_per_s=1e6),
        step_time=lambda rank, n: 2_000_000 + 300_000 * rank,
    )
    summary = done.results[0].summary
    return summary["blocked_s"], summary["parts_s"]


@pytest.mark.parametrize("strategy", ["ddp", "hsgd", "daso", "ednncomm", "lasgd", "sgp"])
def test_both_classes_together_are_what_was_exposed_and_waited(strategy: str):
    found, parts = blocked(strategy)
    assert sum(found.values()) == pytest.approx(parts["exposed"] + parts["waiting"], rel=1e-6)
    assert sum(found.values()) > 0


def test_two_levels_are_told_apart():
    flat, _ = blocked("ddp")
    two_level, _ = blocked("hsgd")
    assert flat["intra"] == 0
    assert flat["inter"] > 0
    assert two_level["intra"] > 0
    assert two_level["inter"] > 0


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


def test_what_is_not_training_is_not_counted():
    traffic = Traffic(Topology.of([2]), rank=0)
    key = traffic.launch("control", (0, 1), 0)
    traffic.training = False
    traffic.block(key, 0, 5)
    assert not traffic.blocked_on


def test_a_resumed_run_has_stood_still_as_long(tmp_path: Path):
    cfg = config("hsgd", model=Awkward(), checkpoint_every_samples=128)
    data, slow = cfg.dataset.load(), AlphaBeta(inter_latency_s=0.001, inter_bytes_per_s=1e6)
    whole = simulate(cfg, data, network=slow, checkpoints=tmp_path / "whole")
    with pytest.raises(Dies):
        simulate(cfg, data, network=slow, checkpoints=tmp_path / "broken", loop=dies_after(14))
    resumed = simulate(cfg, data, network=slow, checkpoints=tmp_path / "broken", attempt=2)
    found, wanted = (done.results[0].summary["blocked_s"] for done in (resumed, whole))
    assert found == pytest.approx(wanted, rel=1e-9)
    assert sum(wanted.values()) > 0
