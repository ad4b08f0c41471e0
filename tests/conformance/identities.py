"""Where a strategy must equal another one, and what it must do to parameters that no gradient moves."""

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any

import torch
from numpy_models import uneven
from numpy_optimizers import PLAIN, Recipe
from proof import EPOCHS, STEPS_PER_EPOCH, Identity, builtin
from torch import Tensor
from torch_models import ModelProblem, autoencoder

from daso_bench.runner.conformance.checks import (
    Failed,
    RanksOfNodes,
    require_equal,
    require_same_walk,
)
from daso_bench.runner.conformance.driver import drive
from daso_bench.runner.conformance.scenario import History, Scenario
from daso_bench.strategies.base import Strategy

APART = 1e-3  # what must differ, differs by more than this


def require(
    name: str, identity: Identity, strategy_class: type[Strategy], ranks: RanksOfNodes, recipe: Recipe
) -> None:
    """Raise Failed where the identity of strategy `name` does not hold, or holds where it must break."""
    problem = problem_of(identity, ranks, recipe)
    left = drive(scenario(strategy_class, identity.keys, ranks, problem))
    what = f"{identity.sentence(name)}; with {recipe.kind}, momentum {recipe.momentum}"
    if identity.right is None:
        right: Sequence[Mapping[int, Tensor]] = [plain(problem, sum(ranks))] * sum(ranks)
    else:
        histories = right_side(identity.right, tuple(identity.right_keys.items()), ranks, problem)
        right = [history.parameters for history in histories]
    if recipe in identity.breaks:
        require_apart(left, right, what)
        return
    tolerance = 0.0 if identity.bitwise else identity.tolerance
    for history, wanted in zip(left, right, strict=True):
        require_same_walk(history, wanted, what, tolerance)


def require_apart(histories: Sequence[History], wanted: Sequence[Mapping[int, Tensor]], what: str) -> None:
    """Raise Failed unless the last parameters differ clearly."""
    for history, parameters in zip(histories, wanted, strict=True):
        last = history.steps
        if last in parameters and (history.parameters[last] - parameters[last]).abs().max() <= APART:
            raise Failed(f"{what}: rank {history.rank}: equal to {APART:.0e}, must not be")


def scenario(
    strategy_class: type[Strategy],
    keys: Mapping[str, Any],
    ranks: RanksOfNodes,
    problem: ModelProblem,
    **changes: Any,
) -> Scenario:
    """The run of one side: `EPOCHS` x `STEPS_PER_EPOCH` steps."""
    fields: dict[str, Any] = {
        "strategy_class": strategy_class,
        "config": strategy_class.Config(**keys),
        "ranks_of_nodes": ranks,
        "problem": problem,
        "steps_per_epoch": STEPS_PER_EPOCH,
        "epochs": EPOCHS,
    }
    return Scenario(**{**fields, **changes})


def problem_of(identity: Identity, ranks: RanksOfNodes, recipe: Recipe) -> ModelProblem:
    """The float64 autoencoder with the identity's samples."""
    total = sum(ranks)
    full, short = uneven(total)
    twos = (2,) * total
    sizes = {
        "even": (twos, (1,) * total),
        "same": (twos, twos),
        "full": (full, full),
        "uneven": (full, short),
    }
    return autoencoder(total, recipe=recipe, steps_per_epoch=STEPS_PER_EPOCH, sizes=sizes[identity.samples])


@cache
def right_side(
    strategy: str, keys: tuple[tuple[str, Any], ...], ranks: RanksOfNodes, problem: ModelProblem
) -> list[History]:
    """The run of an identity's right side; several identities share one."""
    return drive(scenario(builtin(strategy).strategy_class, dict(keys), ranks, problem))


@cache
def plain(problem: ModelProblem, ranks: int) -> dict[int, Tensor]:
    """Training without a strategy: one model on all ranks' samples. Parameters after so many steps."""
    model, criterion = problem.model().train(), problem.criterion()
    trained: list[Tensor] = [p for p in model.parameters() if p.requires_grad]
    optimizer = problem.optimizer(trained)
    walk = {0: _flat(trained)}
    for step in range(EPOCHS * STEPS_PER_EPOCH):
        pieces = [problem.data(rank, step) for rank in range(ranks)]
        optimizer.zero_grad()
        inputs, targets = (torch.cat([piece[side] for piece in pieces]) for side in (0, 1))
        criterion(model(inputs), targets).backward()
        optimizer.step()
        walk[step + 1] = _flat(trained)
    return walk


def _flat(tensors: Sequence[Tensor]) -> Tensor:
    return torch.cat([tensor.detach().reshape(-1) for tensor in tensors])


# ------------------------------------------------------------------ mixing alone


def still(
    kind: type[Strategy], keys: Mapping[str, Any], ranks: RanksOfNodes, start: Callable[[int], float]
) -> list[History]:
    """A short run at learning rate 0, in which all parameters of a rank begin at `start`."""
    ones, steps = (1,) * sum(ranks), STEPS_PER_EPOCH // 2
    problem = autoencoder(sum(ranks), recipe=PLAIN, steps_per_epoch=steps, sizes=(ones, ones))
    begin = torch.ones(len(problem.numpy_model.start), dtype=torch.float64)
    fixed: dict[str, Any] = {"rate": lambda step: 0.0, "start": lambda rank: start(rank) * begin}
    return drive(scenario(kind, keys, ranks, problem, steps_per_epoch=steps, **fixed), step_time=1000)


def keeps_still(strategy_class: type[Strategy], keys: Mapping[str, Any], ranks: RanksOfNodes) -> None:
    """Equal models stay as they are."""
    for history in still(strategy_class, keys, ranks, lambda rank: 0.7):
        start = history.parameters[0]
        for step, value in history.parameters.items():
            require_equal(value, start, f"rank {history.rank}, after step {step}", history.names, 1e-12)
        require_equal(history.final, start, f"rank {history.rank}, at the end", history.names, 1e-12)


def keeps_mean(strategy_class: type[Strategy], keys: Mapping[str, Any], ranks: RanksOfNodes) -> None:
    """The mean over ranks stays what it was, and all hold it in the end."""
    values = [float(rank * rank + 1) for rank in range(sum(ranks))]
    histories = still(strategy_class, keys, ranks, lambda rank: values[rank])
    mean = torch.full_like(histories[0].final, sum(values) / len(values))
    for step in range(min(history.steps for history in histories) + 1):
        now = torch.stack([history.parameters[step] for history in histories]).mean(0)
        require_equal(now, mean, f"the mean over ranks after step {step}", (), 1e-12)
    for history in histories:
        require_equal(history.final, mean, f"rank {history.rank}, at the end", history.names, 1e-12)


def weighs_ranks(strategy_class: type[Strategy], keys: Mapping[str, Any], ranks: RanksOfNodes) -> None:
    """0, 0, 0 on one node and 4 on another have the mean 1, not 2."""
    for history in still(strategy_class, keys, ranks, lambda rank: 4.0 if rank == 3 else 0.0):
        mean = torch.ones_like(history.final)
        require_equal(history.final, mean, f"rank {history.rank}, at the end", history.names, 1e-12)


def spread(models: Sequence[Tensor]) -> float:
    """The largest difference of any element between ranks."""
    stacked = torch.stack(list(models))
    return float((stacked.amax(0) - stacked.amin(0)).max())


def agrees_in(steps: Callable[[int], int]) -> Callable[..., None]:
    """All ranks hold the same after `steps(ranks)` steps, and not before."""

    def holds(strategy_class: type[Strategy], keys: Mapping[str, Any], ranks: RanksOfNodes) -> None:
        histories = still(strategy_class, keys, ranks, lambda rank: float(rank * rank))
        after = steps(len(histories))
        apart = spread([history.parameters[after] for history in histories])
        if apart > 1e-12:
            raise Failed(f"ranks are {apart:.3g} apart after {after} steps, must agree")
        if after > 1 and spread([history.parameters[after - 1] for history in histories]) <= APART:
            raise Failed(f"ranks agree after {after - 1} steps already")

    return holds
