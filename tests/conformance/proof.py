"""What the file of a strategy in `references/` declares beside its reference: cases, identities, mixing.

`CASES`: runs in which the strategy is compared with its NumPy reference after each step. `IDENTITIES`: other
strategies that it must equal. `MIXING`: what it must do to parameters at learning rate 0. `VARIANTS`: further
keys, with which its contract is tried and its traffic is counted.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from importlib import import_module
from typing import Any

from numpy_optimizers import ADAMW, DECAYED, NESTEROV, Recipe
from torch_models import ModelProblem, autoencoder

from daso_bench.runner.communication.link_costs import Network
from daso_bench.runner.config import groups
from daso_bench.runner.conformance.check_command import candidates
from daso_bench.runner.conformance.checks import Candidate, RanksOfNodes
from daso_bench.runner.training.device_model import StepTime
from daso_bench.strategies.base import Strategy

NODES: tuple[RanksOfNodes, ...] = ((1, 1), (2, 2))
RAGGED: tuple[RanksOfNodes, ...] = (*NODES, (2, 1))
EPOCHS, STEPS_PER_EPOCH = 2, 10
"""Length of the runs of identities and of mixing."""
EVERY = (NESTEROV, ADAMW)


@dataclass(frozen=True)
class Slow(Network):
    """Only the parameters' all-reduce between nodes takes time, `round_ns`; small messages are free."""

    round_ns: int

    def duration_ns(self, verb: str, members: Sequence[int], payload: int, inter: bool) -> int:
        return self.round_ns if verb == "all_reduce" and inter and payload > 64 else 0


@dataclass(frozen=True, kw_only=True)
class Case:
    """One configuration, on each of `ranks`.

    `dtype`, `odd`: types of the model and of its odd parameter. `rate`: learning rate of a step. `clip_norm`:
    largest norm of the gradients that are applied. `losses` of epochs. `step_ns`: of a step (rank, samples);
    `round_ns`: of an all-reduce of parameters between nodes.
    """

    keys: Mapping[str, Any] = field(default_factory=dict)
    ranks: tuple[RanksOfNodes, ...] = RAGGED
    recipe: Recipe = NESTEROV
    dtype: str = "float64"
    odd: str | None = None
    rate: Callable[[int], float] | None = None
    clip_norm: float | None = None
    losses: Callable[[int], float] | None = None
    step_ns: StepTime = lambda rank, samples: 1000
    round_ns: int = 0
    epochs: int = 3
    steps_per_epoch: int = 10

    def problem(self, ranks: RanksOfNodes) -> ModelProblem:
        """What is trained."""
        return autoencoder(
            sum(ranks),
            dtype=self.dtype,
            odd=self.odd,
            recipe=self.recipe,
            steps_per_epoch=self.steps_per_epoch,
        )

    @property
    def name(self) -> str:
        """`sync_every=4, adamw, float32 with one float64`."""
        words = [f"{key}={value}" for key, value in self.keys.items()]
        if self.recipe != NESTEROV:
            words.append(self.recipe.kind)
        if self.rate is not None:
            words.append("falling rate")
        if self.clip_norm is not None:
            words.append("clipped")
        if self.losses is not None:
            words.append("losses given")
        if self.epochs > 5:
            words.append(f"{self.epochs} epochs")
        if self.dtype != "float64" or self.odd is not None:
            words.append(self.dtype + (f" with one {self.odd}" if self.odd else ""))
        return ", ".join(words) or "defaults"


def usual(
    keys: Mapping[str, Any], ranks: tuple[RanksOfNodes, ...] = RAGGED, epochs: int = 3
) -> tuple[Case, ...]:
    """The same keys with every kind of optimizer and of types, the costly ones on the last `ranks` alone."""
    case, last = Case(keys=keys, ranks=ranks, epochs=epochs), ranks[-1:]
    return (
        case,
        replace(case, ranks=last, recipe=ADAMW),
        replace(case, ranks=last, dtype="float32", odd="float64"),
        replace(case, ranks=last, odd="float32", recipe=DECAYED),
        replace(case, ranks=last, rate=warmed, clip_norm=0.2, epochs=3),
    )


def brief(**fields: Any) -> Case:
    """A variant that shows itself in the first two epochs."""
    return Case(epochs=2, **fields)


def falling(every: int, factors: Sequence[float] = (1.0, 0.5, 0.25)) -> Callable[[int], float]:
    """A learning rate of 0.2 that falls after so many steps, then again."""
    return lambda step: 0.2 * factors[min(step // every, len(factors) - 1)]


def warmed(step: int) -> float:
    """A learning rate that rises to 0.1 over six steps, and falls in every step."""
    return 0.1 * min(1.0, (step + 1) / 6) * 0.97**step


def skewed(rank: int, samples: int) -> int:
    """Ranks of unlike speed; on the first, a sample takes four times as long."""
    fixed, each = ((2000, 4000), (3000, 1000), (1000, 1000), (1000, 2000))[rank % 4]
    return fixed + each * samples


def step_times(*times: int) -> StepTime:
    """Each rank's own step time, whatever the samples."""
    return lambda rank, samples: times[rank % len(times)]


@dataclass(frozen=True, kw_only=True)
class Identity:
    """A strategy with `keys` equals `right` with `right_keys`; None: one rank that trains on all samples.

    `breaks`: optimizers with which they must differ. `samples` of a rank in a step: `even` over ranks, `same`
    over ranks and steps, `full` uneven over ranks, `uneven` over both. `bitwise`: equal bits. The default
    optimizer is linear in gradients and state: averaging models is averaging gradients.
    """

    keys: Mapping[str, Any] = field(default_factory=dict)
    right: str | None = "ddp"
    right_keys: Mapping[str, Any] = field(default_factory=dict)
    ranks: tuple[RanksOfNodes, ...] = RAGGED
    recipes: tuple[Recipe, ...] = (NESTEROV,)
    breaks: tuple[Recipe, ...] = ()
    samples: str = "even"
    bitwise: bool = False
    tolerance: float = 1e-12

    def sentence(self, left: str) -> str:
        """`local_sgd sync_every=1 is ddp, to 1e-12, but not with adamw`."""
        how = "bit for bit" if self.bitwise else f"to {self.tolerance:.0e}"
        right = "plain training" if self.right is None else spelt(self.right, self.right_keys)
        but = f", but not with {', '.join(recipe.kind for recipe in self.breaks)}" if self.breaks else ""
        return f"{spelt(left, self.keys)} is {right}, {how}{but}"


def spelt(strategy: str, keys: Mapping[str, Any]) -> str:
    """`local_sgd sync_every=1`."""
    return " ".join([strategy, *(f"{key}={value}" for key, value in keys.items())])


@dataclass(frozen=True)
class Mixing:
    """What a strategy with `keys` does to one parameter at learning rate 0; `holds` raises Failed."""

    holds: Callable[[type[Strategy], Mapping[str, Any], RanksOfNodes], None]
    keys: Mapping[str, Any]
    ranks: tuple[RanksOfNodes, ...]


def strategies() -> list[str]:
    """The names of all built-in strategies."""
    return list(groups.entries("strategy"))


def declared(strategy: str, table: str) -> tuple[Any, ...]:
    """A table of `references/<strategy>.py`, such as `CASES`."""
    return getattr(import_module(f"references.{strategy}"), table)


@cache
def builtin(strategy: str) -> Candidate:
    """The strategy with its defaults, periods shortened to the kit's trial run."""
    ((candidate, _),) = candidates([f"strategy={strategy}"])
    return candidate


def with_keys(candidate: Candidate, keys: Mapping[str, Any]) -> Candidate:
    """The candidate with other values of `keys`."""
    return replace(candidate, config=replace(candidate.config, **keys))
