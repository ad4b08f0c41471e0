"""On a real GPU, where there is one: the same training as on the CPU, in every way of computing."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from real_runs import assert_close, final_model, finished, launch
from runs import SmallCNN, config

from daso_bench.runner.config.cluster import ClusterConfig, DeviceConfig
from daso_bench.runner.config.run_config import RunConfig
from daso_bench.runner.records.json_lines import read_json
from daso_bench.runner.records.run_directory import RunDirectory
from daso_bench.runner.simulation.simulated_world import simulate

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
    theirs = simulate(cfg, cfg.dataset.load()).contexts[0].replica.model.state_dict()
    assert_close(final_model(directory), theirs, tolerance)
    parts = summary["parts_s"]
    assert parts["compute"] > 0, "events tell how long the device computed"
    assert sum(parts.values()) == pytest.approx(summary["train_s"], rel=0.01)


@pytest.mark.parametrize("strategy", ["ddp", "daso", "lasgd", "sgp", "hsgd"])
def test_ranks_that_share_a_gpu_are_joined_by_gloo(tmp_path: Path, strategy: str):
    _, directory, summary = on_gpu(tmp_path, (1, 1), strategy)
    assert summary["steps"] > 0
    assert read_json(directory.path / "environment.json")["backend"] == "gloo"
    assert "2 ranks share a GPU, joined by gloo" in directory.status()["timing"]["reasons"]


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
