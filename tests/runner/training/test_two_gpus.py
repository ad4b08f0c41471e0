"""On two real GPUs or more: NCCL between ranks, and what it trains is what a CPU trains."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from gpu_runs import Arm, arms, run_of
from real_runs import assert_close, final_model, finished
from runs import NAMES, SmallCNN, config

from daso_bench.runner.config.cluster import ClusterConfig, DeviceConfig
from daso_bench.runner.config.run_config import RunConfig
from daso_bench.runner.records.json_lines import read_json
from daso_bench.runner.records.run_directory import RunDirectory
from daso_bench.runner.simulation.simulated_world import simulate

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two CUDA devices"),
]
NODES = [(2,), (1, 1)]
"""Ranks of each node: two GPUs within one, and between two."""
SYNCHRONOUS = ["ddp", "hsgd", "placebo"]
"""Strategies that train what one process trains, however long their ranks take."""
WAYS = [arm for arm in arms() if arm.name.startswith("ddp_")]


def over_nccl(cfg: RunConfig, tmp_path: Path, nodes: tuple[int, ...]) -> tuple[RunDirectory, Any]:
    """The directory and the summary of a run that finished on as many GPUs."""
    device = DeviceConfig(kind=("cuda",))
    cfg = replace(cfg, cluster=ClusterConfig(nodes=len(nodes), ranks_per_node=nodes, device=device))
    directory, summary = finished(replace(cfg, results_dir=tmp_path))
    environment = read_json(directory.path / "environment.json")
    assert environment["backend"] == "nccl"
    assert len({row["device"] for row in environment["ranks"]}) == sum(nodes), "a GPU of its own for each"
    return directory, summary


@pytest.mark.parametrize("nodes", NODES)
@pytest.mark.parametrize("strategy", SYNCHRONOUS)
def test_sums_over_nccl_train_what_a_cpu_trains(tmp_path: Path, strategy: str, nodes: tuple[int, ...]):
    cfg = config(strategy, ranks=list(nodes), model=SmallCNN(channels=[8, 16]), epochs=3, results=tmp_path)
    directory, summary = over_nccl(cfg, tmp_path, nodes)
    theirs = simulate(cfg, cfg.dataset.load()).contexts[0].replica.model.state_dict()
    assert_close(final_model(directory), theirs, 1e-4)
    parts = summary["parts_s"]
    assert parts["compute"] > 0, "events tell how long the devices computed"
    assert sum(parts.values()) == pytest.approx(summary["train_s"], rel=0.2)


@pytest.mark.parametrize("nodes", NODES)
@pytest.mark.parametrize("strategy", sorted({*NAMES} - {*SYNCHRONOUS}))
def test_every_other_strategy_learns_over_nccl(tmp_path: Path, strategy: str, nodes: tuple[int, ...]):
    arm = next(arm for arm in arms() if arm.name == strategy)
    _, summary = over_nccl(run_of(arm, ClusterConfig(nodes=1), 40), tmp_path, nodes)
    assert summary["final_accuracy"] > 0.5


@pytest.mark.parametrize("arm", WAYS, ids=lambda arm: arm.name)
def test_other_ways_to_sum_learn_over_nccl(tmp_path: Path, arm: Arm):
    _, summary = over_nccl(run_of(arm, ClusterConfig(nodes=1), 40), tmp_path, (1, 1))
    assert summary["final_accuracy"] > 0.5
