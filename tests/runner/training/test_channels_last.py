"""train.channels_last: another order in memory, the same training. Real ranks: launch/test_torch_world.py."""

from typing import Any

import pytest
import torch
from real_runs import assert_close
from runs import PERIODS, SmallCNN, config, evaluations, simulated

LAST = torch.channels_last


@pytest.mark.parametrize(
    ("strategy", "keys"),
    [
        ("ddp", {"hook": "powersgd", "powersgd_start_steps": 2}),
        *[(strategy, PERIODS.get(strategy)) for strategy in ("ddp", "daso", "hsgd", "lasgd", "slowmo")],
    ],
)
def test_training_is_the_same_up_to_rounding(strategy: str, keys: dict[str, Any] | None):
    model = SmallCNN(channels=[4, 6], norm="batch")
    train: dict[str, Any] = {"epochs": 3, "precision": "fp64", "model": model}
    ours, theirs = (
        simulated(config(strategy, keys=keys, channels_last=last, **train), step_time=lambda r, n: 10**6)
        for last in (True, False)
    )
    mine, other = (done.contexts[1].replica.model.state_dict() for done in (ours, theirs))
    assert_close(mine, other, 1e-9)
    kernels = [p for p in ours.contexts[1].replica.parameters.tensors if p.dim() == 4]
    assert all(kernel.is_contiguous(memory_format=LAST) for kernel in kernels)
    assert not all(kernel.is_contiguous() for kernel in kernels)
    losses = [[row["loss"] for row in evaluations(done)] for done in (ours, theirs)]
    assert losses[0] == pytest.approx(losses[1], rel=1e-9)
