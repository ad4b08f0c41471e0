"""Optimizers: the values arrive in torch's, and the ranges are checked."""

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch

from daso_bench.runner.config.optimizers import LARS, SGD, AdamW
from daso_bench.strategies.errors import ConfigError


def test_sgd_takes_one_nesterov_step_by_hand() -> None:
    weight = torch.nn.Parameter(torch.tensor([2.0]))
    optimizer = SGD(lr=0.1, momentum=0.9, nesterov=True, weight_decay=0.5).build([weight])
    weight.grad = torch.tensor([1.0])
    optimizer.step()
    # g = 1 + 0.5·2 = 2; buffer = 2; the step is g + 0.9·buffer = 3.8
    assert weight.item() == pytest.approx(2 - 0.1 * 3.8)


def test_adamw_hands_every_value_on() -> None:
    chosen = AdamW(lr=0.02, beta1=0.8, beta2=0.7, eps=1e-5, weight_decay=0.3)
    optimizer = chosen.build([torch.nn.Parameter(torch.zeros(1))])
    assert isinstance(optimizer, torch.optim.AdamW)
    (group,) = optimizer.param_groups
    values = [group[key] for key in ("lr", "betas", "eps", "weight_decay")]
    assert values == [0.02, (0.8, 0.7), 1e-5, 0.3]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: SGD(lr=0), "optimizer.lr=0: must be > 0"),
        (lambda: SGD(lr=math.nan), "optimizer.lr=nan: must be > 0"),
        (lambda: SGD(lr=math.inf), "optimizer.lr=inf: must be finite"),
        (lambda: SGD(momentum=1), "optimizer.momentum=1: must be at least 0 and below 1"),
        (lambda: SGD(momentum=0), "optimizer.nesterov=true: needs optimizer.momentum > 0"),
        (lambda: SGD(weight_decay=-1), "optimizer.weight_decay=-1: must be >= 0"),
        (lambda: AdamW(beta2=1), "optimizer.beta2=1: must be at least 0 and below 1"),
        (lambda: AdamW(eps=0), "optimizer.eps=0: must be > 0"),
    ],
)
def test_bad_values_are_refused(make: Callable[[], Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        make()


def lars_step(w: list[float], g: list[float], **keys: object) -> list[float]:
    config = LARS(**{"momentum": 0.0, "lr": 2.0, "skip": "none", "weight_decay": 0.0, **keys})  # pyright: ignore[reportArgumentType] (values of several types)
    parameter = torch.nn.Parameter(torch.tensor(w, dtype=torch.float64))
    optimizer = config.build([parameter])
    parameter.grad = torch.tensor(g, dtype=torch.float64)
    optimizer.step()
    return (torch.tensor(w, dtype=torch.float64) - parameter.detach()).tolist()


def test_lars_by_hand():
    assert lars_step([3, 4], [0, 1]) == pytest.approx([0, 0.01], abs=1e-12)
    assert lars_step([3, 4], [0, 1], weight_decay=0.1) == pytest.approx([0.002, 0.028 / 3], abs=1e-12)


def test_lars_steps_scale_with_weights_and_not_with_gradients():
    once = lars_step([3, 4], [2, 1])
    assert lars_step([3, 4], [20, 10]) == pytest.approx(once, abs=1e-12)
    assert lars_step([30, 40], [2, 1]) == pytest.approx([10 * x for x in once], abs=1e-12)


@pytest.mark.parametrize(("w", "g", "step"), [([0, 0], [0, 1], [0, 2]), ([3, 4], [0, 0], [0, 0])])
def test_a_zero_norm_means_a_plain_step(w: list[float], g: list[float], step: list[float]):
    assert lars_step(w, g) == pytest.approx(step, abs=1e-12)


def test_the_rate_enters_the_momentum():
    # λ is 1 for a skipped tensor: gradient 1, μ = 0.9, learning rate 1 then 2.
    parameter = torch.nn.Parameter(torch.zeros(1, dtype=torch.float64))
    optimizer = LARS(weight_decay=0.0).build([parameter])
    for lr in (1.0, 2.0):
        optimizer.param_groups[0]["lr"] = lr
        parameter.grad = torch.ones(1, dtype=torch.float64)
        optimizer.step()
    assert -parameter.item() == pytest.approx(3.9, abs=1e-12)


def test_skipped_tensors_take_the_steps_of_momentum_sgd_without_decay():
    ours, theirs = (torch.nn.Parameter(torch.tensor([1.0, -2.0], dtype=torch.float64)) for _ in range(2))
    one = LARS(lr=0.1, weight_decay=0.5).build([ours])
    other = torch.optim.SGD([theirs], lr=0.1, momentum=0.9, weight_decay=0.0)
    for _ in range(3):
        ours.grad = theirs.grad = torch.tensor([0.3, 0.7], dtype=torch.float64)
        one.step()
        other.step()
    assert torch.allclose(ours, theirs, rtol=0, atol=1e-12)
