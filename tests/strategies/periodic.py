"""Problems and questions for tests of strategies that average models from time to time."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from harness import Data
from torch import Tensor, nn

from daso_bench.runner.conformance.scenario import History, Problem, Scenario
from daso_bench.strategies.base import Strategy

Optimizer = Callable[[list[Tensor]], torch.optim.Optimizer]


def sgd(lr: float = 0.05, **more: Any) -> Optimizer:
    """A maker of plain SGD."""
    return lambda parameters: torch.optim.SGD(parameters, lr=lr, **more)


def classifier() -> nn.Module:
    """A small net for inputs [b, 6], five classes."""
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(6, 7), nn.Tanh(), nn.Linear(7, 5)).double()


def labelled(rank: int, step: int) -> tuple[Tensor, Tensor]:
    """Random inputs [4, 6] and labels, new ones for each rank and step."""
    generator = torch.Generator().manual_seed(1000 * step + rank)
    inputs = torch.randn(4, 6, generator=generator).double() * (1 + rank)
    return inputs, torch.randint(5, (4,), generator=generator)


def scenario(
    strategy: Strategy,
    ranks_of_nodes: Sequence[int],
    *,
    steps: int,
    epochs: int = 1,
    model: Callable[[], nn.Module] | None = None,
    data: Data | None = None,
    optimizer: Optimizer | None = None,
    **more: Any,
) -> Scenario:
    """A walk of `steps` steps an epoch on the classifier."""
    problem = Problem(
        name="classifier",
        model=model or classifier,
        data=data or labelled,
        optimizer=optimizer or sgd(momentum=0.9),
        criterion=more.pop("criterion", nn.CrossEntropyLoss),
    )
    return Scenario(
        strategy_class=type(strategy),
        config=strategy.config,
        ranks_of_nodes=ranks_of_nodes,
        problem=problem,
        steps_per_epoch=steps,
        epochs=epochs,
        **more,
    )


def averaged_after(history: History) -> list[int]:
    """The steps after which all models were averaged, of all epochs."""
    return [step for record in history.records for step in record["averaged_after"]]
