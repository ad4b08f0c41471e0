"""SlowMo: hand values, rates, records, refusals."""

from typing import Any

import pytest
import torch
from harness import Mean
from periodic import scenario, sgd, walk
from torch import Tensor, nn

from daso_bench.strategies.slowmo import SlowMo, SlowMoConfig


def slowmo(**keys: Any) -> SlowMo:
    return SlowMo(SlowMoConfig(**keys))


def largest_difference(one: Tensor, other: Tensor) -> float:
    return (one - other).abs().max().item()


# ------------------------------------------------------------------ the update rule


class Slope(nn.Module):
    """θ itself, so that its gradient is 1."""

    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.zeros(1, dtype=torch.float64))

    def forward(self, x: Tensor) -> Tensor:
        return self.w.expand(len(x))


def test_momentum_is_in_units_of_gradients_when_the_rate_changes():
    """Rates 0.1, 0.3 (mean 0.2, moved 0.4, u = 2), then 0.5, 0.5 (moved 1, u = 2·β + 2 = 3)."""
    rates = [0.1, 0.3, 0.5, 0.5]
    data = lambda rank, step: (torch.ones(1, 1), torch.zeros(1))  # noqa: E731
    one = scenario(
        slowmo(sync_every=2, slow_momentum=0.5),
        [1, 1],
        steps=4,
        model=Slope,
        data=data,
        criterion=Mean,
        rate=rates.__getitem__,
        optimizer=sgd(),
    )
    for history in walk(one):
        assert history.parameters[2].item() == pytest.approx(-0.4, abs=1e-12)
        assert history.parameters[4].item() == pytest.approx(-0.4 - 0.5 * 3, abs=1e-12)


def test_rounds_at_a_rate_of_zero_are_plain_averages():
    rates = [0.0, 0.0, 0.1, 0.1, 0.0, 0.0]
    walked = walk(scenario(slowmo(sync_every=2), [1, 1], steps=6, rate=rates.__getitem__))
    for history in walked:
        assert torch.equal(history.parameters[2], history.parameters[0])
        assert not torch.equal(history.parameters[4], history.parameters[2])
        assert largest_difference(history.parameters[6], history.parameters[4]) < 1e-15
        assert bool(history.final.isfinite().all())
