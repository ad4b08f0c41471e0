"""A scenario as configuration and workload of a run: given batches, model, optimizer and learning rates."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cache, cached_property
from itertools import accumulate, count
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ...datasets.data import Data as Splits
from ...datasets.sampler import split, without_crumbs
from ...datasets.stream_seeds import stream_seed
from ...strategies.base import AsynchronousStrategy, Strategy
from ...strategies.communicator import Communicator
from ...strategies.progress import Progress
from ..config.cluster import ClusterConfig
from ..config.launchers import LocalConfig
from ..config.optimizers import Optimizer
from ..config.parts import RunInfo, StudyInfo, TrainConfig
from ..config.run_config import RunConfig
from ..config.schedules import Schedule
from ..config.tasks import Classification
from ..simulation.timing_only import ghost_data
from ..training.batch_order import BatchOrder, Place
from ..training.loader import Images, Loader
from ..training.workload import Workload, seed_generators
from .scenario import Data, Problem, Scenario

NEVER = 2**60
"""Samples after which the trainer itself would evaluate."""
PRECISIONS = {torch.float32: "fp32", torch.float64: "fp64"}


class GivenConfig(RunConfig):
    """A configuration made of a scenario's parts; nothing is checked, since scenarios may be unusual."""

    def __post_init__(self) -> None:
        return

    @cached_property
    def run_id(self) -> str:
        """The same for all scenarios: their parts are objects, which have no keys to hash."""
        return "given"


@dataclass
class GivenOptimizer(Optimizer):
    """The scenario's optimizer. `lr`: of its groups; 1 where the scenario gives the rates."""

    make: Callable[[list[Tensor]], torch.optim.Optimizer]
    rated: bool
    lr: float = 1.0

    def build(self, parameters: Iterable[Tensor]) -> torch.optim.Optimizer:
        optimizer = self.make(list(parameters))
        if not self.rated:
            self.lr = optimizer.param_groups[0]["lr"]
        return optimizer


@dataclass
class GivenRates(Schedule):
    """The scenario's learning rates. `before`: the global samples that were known before the last step."""

    scenario: Scenario
    before: int = 0
    warmup_epochs: float = 0.0

    def first_decay(self, total_samples: int, samples_per_epoch: int) -> int | None:
        """None: no rate is known before its step."""
        return None

    def factor(self, before: int, after: int, total_samples: int, samples_per_epoch: int) -> float:
        """The rate of the step that begins at `before` global samples; 1 where the optimizer has its own."""
        self.before = before
        if self.scenario.rate is None:
            return 1.0
        if issubclass(self.scenario.strategy_class, AsynchronousStrategy):
            return self.scenario.rate(before // self.scenario.global_batch_size)
        return self.scenario.rate(self._steps[before])

    @cached_property
    def _steps(self) -> dict[int, int]:
        """Steps done, by global samples done."""
        steps = range(self.scenario.epochs * self.scenario.steps_per_epoch)
        sizes = [sum(self.scenario.sizes(step)) for step in steps]
        return {samples: step for step, samples in enumerate(accumulate(sizes, initial=0))}


@dataclass(frozen=True, kw_only=True)
class GivenTask(Classification):
    problem: Problem
    data: Data

    def criterion(self) -> nn.Module:
        return self.problem.criterion()

    def noise(self, samples: int, height: int = 0, width: int = 0) -> Tensor:
        """Targets of the first batch that has samples, as often as needed."""
        targets = next(targets for rank in count() if len(targets := self.data(rank, 0)[1]))
        return targets[torch.arange(samples) % len(targets)]


def given_data(scenario: Scenario) -> Data:
    """The scenario's batches, made once for all ranks of a process."""
    ranks, shift = scenario.topology.ranks, scenario.strategy_class.piece_shift
    data = cache(scenario.problem.data)
    return lambda rank, step: data((rank + shift) % ranks, step)


class GivenOrder(BatchOrder):
    """The batches that the scenario gives to each rank and step; shares cut all of a step anew."""

    def __init__(self, scenario: Scenario, data: Data, rank: int) -> None:
        self.data, self.rank, self.ranks = data, rank, scenario.topology.ranks
        self.independent = issubclass(scenario.strategy_class, AsynchronousStrategy)
        self.steps_per_epoch = scenario.steps_per_epoch
        if self.independent:
            self.samples_per_epoch = self.steps_per_epoch * scenario.global_batch_size
        else:
            self.samples_per_epoch = sum(sum(self.given(step)) for step in range(self.steps_per_epoch))

    def given(self, step: int) -> tuple[int, ...]:
        """Samples of each rank in `step` (from 0), before shares."""
        return tuple(len(self.data(rank, step)[1]) for rank in range(self.ranks))

    def sizes(self, progress: Progress) -> tuple[int, ...]:
        sizes = self.given(progress.step)
        if self.shares is None:
            return sizes
        pieces = split(sum(sizes), tuple(map(float, self.shares.values)))
        return without_crumbs(pieces, self.shares.minimum)

    def piece(self, progress: Progress) -> Tensor:
        raise NotImplementedError("batches are given, not drawn from a data set")

    def upcoming(self, progress: Progress) -> Iterator[tuple[Place, Tensor]]:
        raise NotImplementedError("batches are given, not drawn from a data set")

    def first_sizes(self) -> tuple[int, ...]:
        return self.given(0)

    def counted(self, sizes: tuple[int, ...]) -> int:
        return sizes[self.rank] if self.independent else sum(sizes)

    def advance(self, progress: Progress) -> int:
        if self.independent:
            progress.batch += 1
            return min(progress.samples // self.samples_per_epoch, progress.epochs) - progress.epoch
        return super().advance(progress)


class GivenBatches(Loader):
    def __init__(self, batch_order: GivenOrder) -> None:
        super().__init__(ghost_data("given", 0, 0, 0).train, batch_order, 0)
        self._order = batch_order

    def next(self, progress: Progress) -> Images:
        data, rank, sizes = self._order.data, self._order.rank, progress.samples_of_rank
        if self._order.shares is None:
            inputs, targets = data(rank, progress.step)
            return inputs.clone(), targets.clone()
        pieces = [data(other, progress.step) for other in range(len(sizes))]
        before = sum(sizes[:rank])
        piece = slice(before, before + sizes[rank])
        return torch.cat([x for x, _ in pieces])[piece], torch.cat([t for _, t in pieces])[piece]


def config_of(scenario: Scenario) -> RunConfig:
    """The scenario as the configuration of a run that the trainer itself neither evaluates nor saves."""
    return GivenConfig(
        strategy_class=scenario.strategy_class if scenario.start is None else _starts_apart(scenario),
        strategy=scenario.config,
        model=None,  # pyright: ignore[reportArgumentType] (the workload is given)
        dataset=None,  # pyright: ignore[reportArgumentType] (the workload is given)
        optimizer=GivenOptimizer(scenario.problem.optimizer, scenario.rate is not None),
        schedule=GivenRates(scenario),
        cluster=ClusterConfig(),
        launcher=LocalConfig(),
        train=TrainConfig(
            epochs=scenario.epochs,
            global_batch_size=scenario.global_batch_size,
            eval_every_samples=NEVER,
            eval_mode="inline",
            checkpoint_every_samples=None,
            clip_norm=scenario.clip_norm,
            precision=PRECISIONS.get(scenario.problem.data(0, 0)[0].dtype, "fp32"),
        ),
        seed=scenario.seed,
        run=RunInfo(),
        study=StudyInfo(),
        results_dir=Path(),
    )


def splits_of(scenario: Scenario) -> Splits:
    """Splits without samples; inputs have the shape of the scenario's."""
    shape = tuple(scenario.problem.data(0, 0)[0].shape[1:])
    return replace(ghost_data("given", 1, 0, 0), shape=shape)  # pyright: ignore[reportArgumentType]


def workload_of(scenario: Scenario, data: Data, comm: Communicator) -> Workload:
    seed_generators(stream_seed(scenario.seed, "init"))
    model = scenario.problem.model().train()
    seed_generators(stream_seed(scenario.seed, "dropout", comm.rank))
    order = GivenOrder(scenario, data, comm.rank)
    task = GivenTask(classes=2, problem=scenario.problem, data=data)
    return Workload(model=model, task=task, batch_order=order, loader=GivenBatches(order))


def _starts_apart(scenario: Scenario) -> type[Strategy]:
    """The scenario's strategy on replicas that start at its parameters instead of equal ones."""

    def setup(self: Strategy, replica: Any, comm: Communicator, progress: Progress) -> None:
        assert scenario.start is not None
        replica.load(scenario.start(comm.rank))
        scenario.strategy_class.setup(self, replica, comm, progress)

    return type(scenario.strategy_class.__name__, (scenario.strategy_class,), {"setup": setup})
