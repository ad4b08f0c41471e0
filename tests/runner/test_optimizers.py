"""Optimizers: the values arrive in torch's, and the ranges are checked."""

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
import yaml

from daso_bench.runner import listing, optimizers, schedules
from daso_bench.runner.optimizers import SGD, AdamW
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
    assert {key: group[key] for key in ("lr", "betas", "eps", "weight_decay")} == {
        "lr": 0.02,
        "betas": (0.8, 0.7),
        "eps": 1e-5,
        "weight_decay": 0.3,
    }


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


@pytest.mark.parametrize(("group", "module"), [("optimizer", optimizers), ("schedule", schedules)])
def test_yaml_shows_every_field_with_its_default(group: str, module: Any) -> None:
    found = listing.entries(group)
    assert len(found) >= 2
    for entry in found:
        shown = yaml.safe_load((listing.CONF / group / f"{entry.name}.yaml").read_text())
        kind = getattr(module, shown.pop("_target_").rpartition(".")[2])
        fields = {field.name: field.default for field in dataclasses.fields(kind)}
        fields = {key: list(value) if isinstance(value, tuple) else value for key, value in fields.items()}
        assert shown == fields
        assert list(shown) == list(fields)
