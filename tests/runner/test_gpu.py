"""On a real GPU, where there is one: the same training as on the CPU, in every way of computing."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from runs import SmallCNN, config

from daso_bench.runner import checkpoint, local, schema
from daso_bench.runner.hardware import ClusterConfig, DeviceConfig
from daso_bench.runner.records import read_json
from daso_bench.runner.run_directory import RunDirectory
from daso_bench.runner.simulated_world import simulate

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]


def on_gpu(
    tmp_path: Path, ranks: tuple[int, ...], strategy: str = "ddp", **train: Any
) -> tuple[schema.RunConfig, RunDirectory, dict[str, Any]]:
    cfg = config(
        strategy, ranks=list(ranks), model=SmallCNN(channels=[8, 16]), epochs=3, results=tmp_path, **train
    )
    device = DeviceConfig(kind=("cuda",))
    cfg = replace(cfg, cluster=ClusterConfig(nodes=len(ranks), ranks_per_node=ranks, device=device))
    directory = RunDirectory.create(schema.to_plain(cfg), tmp_path)
    outcome = local.launch(directory, ranks=cfg.cluster.ranks, threads=1, stall_s=60)
    assert outcome.status == "finished", outcome.details
    return cfg, directory, outcome.summary or {}


@pytest.mark.parametrize(
    ("train", "tolerance"),
    [
        ({"precision": "fp64"}, 1e-9),
        ({"precision": "fp32"}, 1e-4),
        ({"precision": "fp32", "channels_last": True}, 1e-4),
        ({"precision": "tf32"}, 1e-2),
        ({"precision": "bf16", "channels_last": True}, 5e-2),
        ({"precision": "fp16"}, 1e-2),
        ({"precision": "fp32", "compile": True}, 1e-4),
    ],
)
def test_one_rank_trains_what_a_cpu_trains(tmp_path: Path, train: dict[str, Any], tolerance: float):
    _, directory, summary = on_gpu(tmp_path, (1,), **train)
    wide = "fp64" if train["precision"] == "fp64" else "fp32"
    cfg = config(ranks=[1], model=SmallCNN(channels=[8, 16]), epochs=3, precision=wide)
    theirs = simulate(cfg, cfg.dataset.load()).sessions[0].replica.model.state_dict()
    model = checkpoint.read(directory.checkpoints / "final" / "model.pt")["model"]
    for name, value in model.items():
        assert (value - theirs[name]).abs().max() <= tolerance, name
    parts = summary["parts_s"]
    assert parts["compute"] > 0, "events tell how long the device computed"
    assert sum(parts.values()) == pytest.approx(summary["train_s"], rel=0.01)


@pytest.mark.parametrize("strategy", ["ddp", "daso", "lasgd", "sgp", "hsgd"])
def test_ranks_that_share_a_gpu_are_joined_by_gloo(tmp_path: Path, strategy: str):
    _, directory, summary = on_gpu(tmp_path, (1, 1), strategy)
    assert summary["steps"] > 0
    assert read_json(directory.path / "environment.json")["backend"] == "gloo"
