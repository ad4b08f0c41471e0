"""Trains a strategy in virtual time on models whose gradients are known."""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from daso_bench.runner.communication.link_costs import Network
from daso_bench.runner.conformance import driver
from daso_bench.runner.conformance.observer import ScenarioObserver
from daso_bench.runner.conformance.scenario import History, Problem, Scenario
from daso_bench.runner.training.trainer import Trainer
from daso_bench.strategies.base import Strategy


class Linear(nn.Module):
    """outputs = x @ w with w starting at `start`:

    with the mean as criterion the gradient is the mean of x.
    """

    def __init__(self, start: Tensor) -> None:
        super().__init__()
        self.w = nn.Parameter(start.clone())

    def forward(self, x: Tensor) -> Tensor:
        return x @ self.w


class Blind(Linear):
    """Has no gradient that is a number for blank inputs, which a rank without samples goes forward with."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) * x[:, 0] / x[:, 0]


class Mean(nn.Module):
    """The mean output, whatever the targets."""

    def forward(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return outputs.mean()


@dataclass
class Trace:
    """One rank's run: parameters after each step; events, `record` and clock at the end of each epoch.

    `verbs`: the strategy's own calls by `channel.verb`.
    """

    parameters: list[Tensor] = field(default_factory=list)
    events: list[str] = field(default_factory=list)
    records: list[dict[str, Any]] = field(default_factory=list)
    epoch_end_ns: list[int] = field(default_factory=list)
    agreed: list[bool] = field(default_factory=list)
    verbs: Counter[str] = field(default_factory=Counter)
    strategy: Any = None
    comm: Any = None
    replica: Any = None


class EpochObserver(ScenarioObserver):
    """Also notes events and this rank's clock at the end of each epoch, and what sends nothing."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.events: list[str] = []
        self.epoch_end_ns: list[int] = []
        self.in_memory: Counter[str] = Counter()
        self._counted_ns = self._loss_ns = 0

    def on_phase(self, trainer: Trainer, phase: str) -> None:
        if phase == "epoch":
            self._loss_ns += self.comm.now() - self._counted_ns  # of the sum of its loss
            self.events.append(spell(getattr(trainer.context.strategy, "events", [])))
        elif self._phase == "epoch":
            self.epoch_end_ns.append(self.comm.now() - self._started - self._loss_ns)
        super().on_phase(trainer, phase)

    def on_step_counted(self, trainer: Trainer, *, agreed: bool, met: bool) -> None:
        self._counted_ns = self.comm.now()
        super().on_step_counted(trainer, agreed=agreed, met=met)

    def on_boundary(self, trainer: Trainer, *, met: bool, last: bool) -> None:
        # Ranks at their own pace take as many steps as others, wherever they meet.
        progress = trainer.context.progress
        over = self.independent and progress.step == progress.steps
        super().on_boundary(trainer, met=met, last=last or over)

    def on_finalized(self, trainer: Trainer) -> None:
        verbs = self.traffic.verbs.items()
        self.in_memory = Counter({verb: times for verb, times in verbs if verb.startswith("shared.")})
        super().on_finalized(trainer)


Optimizer = Callable[[list[Tensor]], torch.optim.Optimizer]
Data = Callable[[int, int], tuple[Tensor, Tensor]]
"""(rank, step) -> inputs [b, …], targets [b]; b may differ between ranks."""


def constant(value: float = 1.0, size: int = 1, dtype: torch.dtype = torch.float64) -> Data:
    """Every rank's gradient is `value` in each of `size` elements."""
    return lambda rank, step: (torch.full((1, size), value, dtype=dtype), torch.zeros(1))


def drive(
    make: Callable[[], Strategy],
    ranks_of_nodes: list[int],
    *,
    epochs: int = 1,
    steps_per_epoch: int,
    data: Data | None = None,
    model: Callable[[], nn.Module] | None = None,
    criterion: nn.Module | None = None,
    optimizer: Optimizer | None = None,
    network: Network | None = None,
    step_ns: int | Callable[[int, int], int] = 0,
    losses: Callable[[int], float] | None = None,
    stop_request: Callable[[int, int], bool] = lambda rank, step: False,
) -> list[Trace]:
    """Train a strategy as `make` gives it, whatever its `check` says, on replicas as `model` makes them.

    Returns the ranks' traces. Defaults: one float64 parameter at 0, gradient 1, SGD lr 1.
    """
    observers: dict[int, EpochObserver] = {}

    def observer(*args: Any) -> EpochObserver:
        made = EpochObserver(*args)
        return observers.setdefault(made.comm.rank, made)

    strategy: Any = make()
    scenario = Scenario(
        strategy_class=unchecked(strategy),
        config=strategy.config,
        ranks_of_nodes=ranks_of_nodes,
        problem=Problem(
            name="harness",
            model=model or (lambda: Linear(torch.zeros(1, dtype=torch.float64))),
            data=with_targets(data or constant()),
            criterion=lambda: criterion or Mean(),
            optimizer=optimizer or (lambda parameters: torch.optim.SGD(parameters, lr=1.0)),
        ),
        steps_per_epoch=steps_per_epoch,
        epochs=epochs,
        losses=losses or (lambda epoch: 0.0),
        stop_request=stop_request,
    )
    histories = driver.drive(scenario, network=network, step_time=step_ns, observer=observer)
    return [
        Trace(
            parameters=[history.parameters[step] for step in sorted(history.parameters)[1:]],
            events=observers[rank].events,
            records=history.records,
            epoch_end_ns=observers[rank].epoch_end_ns,
            agreed=list(history.agreed.values()),
            verbs=history.verbs() + observers[rank].in_memory,
            strategy=history.strategy,
            comm=observers[rank].comm,
            replica=history.replica,
        )
        for rank, history in enumerate(histories)
    ]


def unchecked(strategy: Strategy) -> type[Strategy]:
    """Its class, which takes whatever ranks it is given."""
    kind = type(strategy)
    return type(kind.__name__, (kind,), {"check": classmethod(lambda cls, config, plan: None)})


def with_targets(data: Data) -> Data:
    """As many targets as inputs."""

    def whole(rank: int, step: int) -> tuple[Tensor, Tensor]:
        inputs, targets = data(rank, step)
        return inputs, targets if len(targets) == len(inputs) else torch.zeros(len(inputs))

    return whole


def spell(events: list[tuple[int, str, int]]) -> str:
    """`0 S0 | 4 S1 M0`: what happened after each batch, in order."""
    batches: dict[int, list[str]] = {}
    for batch, letter, q in events:
        batches.setdefault(batch, []).append(f"{letter}{q}")
    return " | ".join(f"{batch} {' '.join(names)}" for batch, names in batches.items())


# ------------------------------------------------------------------ strategies that average from time to time


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
