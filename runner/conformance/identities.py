"""Layer (c): where two strategies must be the same thing, they are; and where they must not, they are not.

The table is in `identity_table.py`. `PROPERTIES` are what mixing alone must do, with learning rate 0.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
import yaml
from torch import Tensor

from ...strategies.base import Strategy
from ..config.groups import CONF
from ..config.typed import locate_target
from .checks import Candidate, Check, Failed, RanksOfNodes
from .comparison import require_equal, require_same_walk, spread
from .driver import drive
from .identity_table import EPOCHS, IDENTITIES, STEPS_PER_EPOCH, Identity
from .problems import TwinProblem, autoencoder, springs
from .references.optimizers import PLAIN, Recipe
from .scenario import Course, History
from .twins import uneven

APART = 1e-3  # what must differ, differs by more than this


# ------------------------------------------------------------------ running the table


def checks(candidate: Candidate) -> list[Check]:
    """The identities and properties of a built-in strategy; none for a plug-in."""
    found = [
        Check(one.name, one.says, _try(one), one.ranks) for one in IDENTITIES if one.left == candidate.builtin
    ]
    for one in PROPERTIES:
        if candidate.builtin in one.strategies:
            found.append(Check(one.name, one.says, _try_property(one), one.ranks))
    return found


def _try(identity: Identity) -> Callable[[Candidate, RanksOfNodes], None]:
    def run(candidate: Candidate, ranks: RanksOfNodes) -> None:
        for recipe in (*identity.recipes, *identity.breaks):
            require(identity, candidate.strategy_class, ranks, recipe)

    return run


def require(identity: Identity, strategy_class: type[Strategy], ranks: RanksOfNodes, recipe: Recipe) -> None:
    """Raise Failed where the identity does not hold, or holds with an optimizer that must break it."""
    problem = problem_of(identity, ranks, recipe)
    left = drive(course(strategy_class, identity.keys, ranks, problem))
    what = f"{identity.says}; with {recipe.kind}, momentum {recipe.momentum}"
    if identity.right is None:
        right: Sequence[Mapping[int, Tensor]] = [plain(problem, sum(ranks))] * sum(ranks)
    else:
        others = other(identity.right, tuple(identity.right_keys.items()), ranks, problem)
        right = [history.parameters for history in others]
    if recipe in identity.breaks:
        require_apart(left, right, what)
        return
    tolerance = 0.0 if identity.bitwise else identity.tolerance
    for history, wanted in zip(left, right, strict=True):
        require_same_walk(history, wanted, what, tolerance)


def require_apart(histories: Sequence[History], wanted: Sequence[Mapping[int, Tensor]], what: str) -> None:
    """Raise Failed unless the last parameters differ clearly: an identity that may not hold was "mended"."""
    for history, parameters in zip(histories, wanted, strict=True):
        last = history.steps
        if last in parameters and (history.parameters[last] - parameters[last]).abs().max() <= APART:
            raise Failed(f"{what}: rank {history.rank}: equal to {APART:.0e}, must not be")


def course(
    strategy_class: type[Strategy],
    keys: Mapping[str, Any],
    ranks: RanksOfNodes,
    problem: TwinProblem,
    **changes: Any,
) -> Course:
    """The run of one side: `EPOCHS` x `STEPS_PER_EPOCH` steps."""
    fields: dict[str, Any] = {
        "strategy_class": strategy_class,
        "config": strategy_class.Config(**keys),
        "ranks_of_nodes": ranks,
        "problem": problem,
        "steps_per_epoch": STEPS_PER_EPOCH,
        "epochs": EPOCHS,
    }
    return Course(**{**fields, **changes})


def problem_of(identity: Identity, ranks: RanksOfNodes, recipe: Recipe) -> TwinProblem:
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
def other(
    strategy: str, keys: tuple[tuple[str, Any], ...], ranks: RanksOfNodes, problem: TwinProblem
) -> list[History]:
    """The right side's run; several identities share one."""
    return drive(course(builtin(strategy), dict(keys), ranks, problem))


@cache
def plain(problem: TwinProblem, ranks: int) -> dict[int, Tensor]:
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


@cache
def builtin(name: str) -> type[Strategy]:
    """The class that conf/strategy/<name>.yaml names."""
    return locate_target(yaml.safe_load((CONF / "strategy" / f"{name}.yaml").read_text()), "strategy")


# ------------------------------------------------------------------ mixing alone


@dataclass(frozen=True, kw_only=True)
class Property:
    """What a strategy does to parameters at learning rate 0. `strategies`: keys by name."""

    name: str
    says: str
    holds: Callable[[type[Strategy], Mapping[str, Any], RanksOfNodes], None]
    strategies: Mapping[str, Mapping[str, Any]]
    ranks: tuple[RanksOfNodes, ...]


def still(
    strategy_class: type[Strategy],
    keys: Mapping[str, Any],
    ranks: RanksOfNodes,
    start: Callable[[int], float] | None,
) -> list[History]:
    """A run on one parameter at learning rate 0, from `start` of each rank."""
    ones = (1,) * sum(ranks)
    problem = springs(sum(ranks), recipe=PLAIN, steps_per_epoch=STEPS_PER_EPOCH, sizes=(ones, ones))
    begin = None if start is None else lambda rank: torch.tensor([start(rank)], dtype=torch.float64)
    return drive(
        course(strategy_class, keys, ranks, problem, rate=lambda step: 0.0, start=begin), step_time=1000
    )


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
    mean = torch.tensor([sum(values) / len(values)], dtype=torch.float64)
    for step in range(min(history.steps for history in histories) + 1):
        now = torch.stack([history.parameters[step] for history in histories]).mean(0)
        require_equal(now, mean, f"the mean over ranks after step {step}", (), 1e-12)
    for history in histories:
        require_equal(history.final, mean, f"rank {history.rank}, at the end", history.names, 1e-12)


def weighs_ranks(strategy_class: type[Strategy], keys: Mapping[str, Any], ranks: RanksOfNodes) -> None:
    """0, 0, 0 on one node and 4 on another have the mean 1, not 2."""
    histories = still(strategy_class, keys, ranks, lambda rank: 4.0 if rank == 3 else 0.0)
    for history in histories:
        one = torch.ones(1, dtype=torch.float64)
        require_equal(history.final, one, f"rank {history.rank}, at the end", history.names, 1e-12)


def agrees_in(steps: Callable[[int], int]) -> Callable[..., None]:
    """After so many steps (of the number of ranks) all hold the same."""

    def holds(strategy_class: type[Strategy], keys: Mapping[str, Any], ranks: RanksOfNodes) -> None:
        histories = still(strategy_class, keys, ranks, lambda rank: float(rank * rank))
        after = steps(len(histories))
        apart = spread([history.parameters[after] for history in histories])
        if apart > 1e-12:
            raise Failed(f"ranks are {apart:.3g} apart after {after} steps, must agree")
        if after > 1 and spread([history.parameters[after - 1] for history in histories]) <= APART:
            raise Failed(f"ranks agree after {after - 1} steps already")

    return holds


AVERAGING: dict[str, Mapping[str, Any]] = {
    "local_sgd": {"sync_every": 3},
    "post_local_sgd": {"switch_samples": 0, "sync_every": 3},
    "lasgd": {"sync_every": 3},
    "sgp": {},
}
PROPERTIES: tuple[Property, ...] = (
    Property(
        name="stands still",
        says="equal models and learning rate 0: nothing changes",
        holds=keeps_still,
        strategies=AVERAGING
        | {
            "ddp": {},
            "placebo": {},
            "hsgd": {},
            "heterogeneous": {"balancing": "equal"},
            "ednncomm": {"sync_every": 3},
            "slowmo": {"sync_every": 3},
            "diloco": {"sync_every": 3},
            "daso": {"warmup_epochs": 1, "cooldown_epochs": 0},
        },
        ranks=((2, 2),),
    ),
    Property(
        name="keeps the mean",
        says="unequal models and learning rate 0: their mean stays, and all hold it in the end",
        holds=keeps_mean,
        strategies=AVERAGING,
        ranks=((2, 2), (2, 1)),
    ),
    Property(
        name="weighs ranks",
        says="nodes of three ranks at 0 and of one at 4 meet at 1",
        holds=weighs_ranks,
        strategies=AVERAGING
        | {
            "ednncomm": {"sync_every": 3},
            "post_local_sgd": {"switch_samples": 0, "sync_every": 3, "unit": "node"},
        },
        ranks=((3, 1),),
    ),
    Property(
        name="consensus in log2 R",
        says="1-peer exponential graphs of 2^m ranks agree after m steps, not before",
        holds=agrees_in(lambda ranks: ranks.bit_length() - 1),
        strategies={"sgp": {}},
        ranks=((1, 1), (2, 2), (4, 4)),
    ),
    Property(
        name="consensus at once",
        says="a complete graph agrees after one step",
        holds=agrees_in(lambda ranks: 1),
        strategies={"sgp": {"graph": "complete"}},
        ranks=((1, 1), (2, 1), (3, 3)),
    ),
)


def _try_property(one: Property) -> Callable[[Candidate, RanksOfNodes], None]:
    def run(candidate: Candidate, ranks: RanksOfNodes) -> None:
        assert candidate.builtin is not None
        one.holds(candidate.strategy_class, one.strategies[candidate.builtin], ranks)

    return run
