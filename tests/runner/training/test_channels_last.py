"""train.channels_last: another order in memory, the same training and the same names."""

from pathlib import Path
from typing import Any

import pytest
import torch
from real_runs import assert_close, final_model, finished
from runs import SmallCNN, config, evaluations

from daso_bench.runner.config.run_config import RunConfig
from daso_bench.runner.simulation.simulated_world import SimulatedRun, simulate

CNN = SmallCNN(channels=[4, 6], norm="batch")
LAST = torch.channels_last


def virtual(cfg: RunConfig, **more: Any) -> SimulatedRun:
    return simulate(cfg, cfg.dataset.load(), step_time=lambda rank, samples: 10**6, **more)


def both(strategy: str, keys: dict[str, Any], **more: Any) -> list[SimulatedRun]:
    train: dict[str, Any] = {"epochs": 3, "precision": "fp64", "model": CNN, **more}
    return [virtual(config(strategy, keys=keys, channels_last=last, **train)) for last in (True, False)]


@pytest.mark.parametrize(
    ("strategy", "keys"),
    [
        ("ddp", {}),
        ("ddp", {"hook": "powersgd", "powersgd_start_steps": 2}),
        ("daso", {"warmup_epochs": 1, "cooldown_epochs": 1}),
        ("hsgd", {}),
        ("lasgd", {}),
        ("slowmo", {}),
    ],
)
def test_training_is_the_same_up_to_rounding(strategy: str, keys: dict[str, Any]):
    ours, theirs = both(strategy, keys)
    mine, other = (done.contexts[1].replica.model.state_dict() for done in (ours, theirs))
    assert_close(mine, other, 1e-9)
    kernels = [p for p in ours.contexts[1].replica.parameters.tensors if p.dim() == 4]
    assert all(kernel.is_contiguous(memory_format=LAST) for kernel in kernels)
    assert not all(kernel.is_contiguous() for kernel in kernels)
    losses = [[row["loss"] for row in evaluations(done)] for done in (ours, theirs)]
    assert losses[0] == pytest.approx(losses[1], rel=1e-9)


def test_real_ranks_train_the_same_model(tmp_path: Path):
    cfg = config(
        "ddp", ranks=[2, 1], epochs=2, model=CNN, precision="fp64", channels_last=True, results=tmp_path
    )
    model = final_model(finished(cfg)[0])
    for name, value in virtual(cfg).contexts[0].replica.model.named_parameters():
        assert (value - model[name]).abs().max() <= 1e-10, name
