"""On real GPUs: the same training as on the CPU, in every way of computing, and over NCCL between two."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from gpu_runs import Arm, arms, run_of
from real_runs import assert_close, final_model, finished, launch
from runs import SmallCNN, config, simulated

from daso_bench.runner.config.cluster import ClusterConfig, DeviceConfig
from daso_bench.runner.config.run_config import RunConfig
from daso_bench.runner.records.json_lines import read_json
from daso_bench.runner.records.run_directory import RunDirectory

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]


def made(
    tmp_path: Path, ranks: tuple[int, ...], strategy: str = "ddp", **more: Any
) -> tuple[RunConfig, RunDirectory]:
    cfg = config(
        strategy, ranks=list(ranks), model=SmallCNN(channels=[8, 16]), epochs=3, results=tmp_path, **more
    )
    device = DeviceConfig(kind=("cuda",))
    cfg = replace(cfg, cluster=ClusterConfig(nodes=len(ranks), ranks_per_node=ranks, device=device))
    return cfg, RunDirectory.create(cfg.tree, tmp_path)


def on_gpu(
    tmp_path: Path, ranks: tuple[int, ...], strategy: str = "ddp", **more: Any
) -> tuple[RunConfig, RunDirectory, dict[str, Any]]:
    cfg, directory = made(tmp_path, ranks, strategy, launcher={"share_gpus": len(ranks) > 1}, **more)
    return cfg, *finished(cfg, directory)


@pytest.mark.parametrize(
    ("train", "tolerance"),
    [
        ({"precision": "fp64"}, 1e-9),
        ({"precision": "fp32"}, 1e-4),
        ({"precision": "fp32", "channels_last": True}, 1e-4),
        ({"precision": "tf32"}, 1e-2),
        ({"precision": "bf16", "channels_last": True}, 5e-2),
        ({"precision": "fp16"}, 1e-2),
    ],
)
def test_one_rank_trains_what_a_cpu_trains(tmp_path: Path, train: dict[str, Any], tolerance: float):
    _, directory, summary = on_gpu(tmp_path, (1,), **train)
    wide = "fp64" if train["precision"] == "fp64" else "fp32"
    cfg = config(ranks=[1], model=SmallCNN(channels=[8, 16]), epochs=3, precision=wide)
    theirs = simulated(cfg).contexts[0].replica.model.state_dict()
    assert_close(final_model(directory), theirs, tolerance)
    parts = summary["parts_s"]
    assert parts["compute"] > 0, "events tell how long the device computed"
    assert sum(parts.values()) == pytest.approx(summary["train_s"], rel=0.01)


def test_sharing_a_gpu_has_to_be_asked_for(tmp_path: Path):
    cfg, directory = made(tmp_path, (2,))
    _, outcome = launch(cfg, directory)
    if torch.cuda.device_count() < cfg.cluster.ranks:
        assert (outcome.status, outcome.exit_code) == ("failed", 3)
        assert "launcher.share_gpus=true" in (outcome.reason or "")
    else:
        assert outcome.status == "finished", outcome.details
        assert read_json(directory.path / "environment.json")["backend"] == "nccl"


@pytest.mark.parametrize(
    ("strategy", "keys"),
    [
        ("ddp", {"hook": "powersgd", "powersgd_start_steps": 2}),
        ("daso", {"warmup_epochs": 1, "cooldown_epochs": 0}),
        ("sgp", {"send_weight": "true"}),
    ],
)
def test_a_run_goes_on_from_a_checkpoint_as_if_it_had_never_stopped(
    tmp_path: Path, strategy: str, keys: dict[str, Any]
):
    """Strategies that keep tensors beside the replica, broken off after 9 steps and saved after 7."""
    models = []
    for name in ("whole", "cut"):
        sharing = {"share_gpus": True}
        cfg, directory = made(
            tmp_path / name, (1, 1), strategy, keys=keys, launcher=sharing, checkpoint_every_samples=7 * 16
        )
        if name == "cut":
            _, broken = launch(cfg, directory, entry="gloo_entries_gpu:dies_after_9_steps")
            assert broken.status == "failed"
        finished(cfg, directory)
        models.append(final_model(directory))
    whole, cut = models
    for name, value in whole.items():
        assert torch.allclose(cut[name], value, atol=1e-6), name


# ------------------------------------------------------------------ NCCL between two GPUs

needs_two = pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two CUDA devices")
NODES = [(2,), (1, 1)]
"""Ranks of each node: two GPUs within one, and between two."""
SYNCHRONOUS = ["ddp", "hsgd", "placebo"]
"""Strategies that train what one process trains, however long their ranks take."""


def over_nccl(cfg: RunConfig, tmp_path: Path, nodes: tuple[int, ...]) -> tuple[RunDirectory, Any]:
    """The directory and the summary of a run that finished on as many GPUs."""
    device = DeviceConfig(kind=("cuda",))
    cfg = replace(cfg, cluster=ClusterConfig(nodes=len(nodes), ranks_per_node=nodes, device=device))
    directory, summary = finished(replace(cfg, results_dir=tmp_path))
    environment = read_json(directory.path / "environment.json")
    assert environment["backend"] == "nccl"
    assert len({row["device"] for row in environment["ranks"]}) == sum(nodes), "a GPU of its own for each"
    return directory, summary


@needs_two
@pytest.mark.parametrize("nodes", NODES)
@pytest.mark.parametrize("strategy", SYNCHRONOUS)
def test_sums_over_nccl_train_what_a_cpu_trains(tmp_path: Path, strategy: str, nodes: tuple[int, ...]):
    cfg = config(strategy, ranks=list(nodes), model=SmallCNN(channels=[8, 16]), epochs=3, results=tmp_path)
    directory, summary = over_nccl(cfg, tmp_path, nodes)
    theirs = simulated(cfg).contexts[0].replica.model.state_dict()
    assert_close(final_model(directory), theirs, 1e-4)
    parts = summary["parts_s"]
    assert parts["compute"] > 0, "events tell how long the devices computed"
    assert sum(parts.values()) == pytest.approx(summary["train_s"], rel=0.2)


@needs_two
@pytest.mark.parametrize("nodes", NODES)
@pytest.mark.parametrize("arm", [a for a in arms() if a.name not in SYNCHRONOUS], ids=lambda arm: arm.name)
def test_other_strategies_and_ways_to_sum_learn_over_nccl(tmp_path: Path, arm: Arm, nodes: tuple[int, ...]):
    _, summary = over_nccl(run_of(arm, ClusterConfig(nodes=1), 40), tmp_path, nodes)
    assert summary["final_accuracy"] > 0.5
