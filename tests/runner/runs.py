"""Small complete runs for tests: a configuration, tiny data, models of every awkward kind."""

import multiprocessing
import os
import signal
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any, ClassVar

import torch
import yaml
from torch import Tensor, nn

from daso_bench.datasets.data import Data, Split
from daso_bench.datasets.dataset import Dataset
from daso_bench.datasets.transforms import recipe
from daso_bench.models.small import MLP, SmallCNN
from daso_bench.models.spec import InputSpec, Model
from daso_bench.runner.config.cluster import ClusterConfig
from daso_bench.runner.config.groups import CONF
from daso_bench.runner.config.launchers import LAUNCHERS
from daso_bench.runner.config.optimizers import SGD
from daso_bench.runner.config.parts import RunInfo, StudyInfo, TrainConfig
from daso_bench.runner.config.run_config import RunConfig
from daso_bench.runner.config.schedules import Constant
from daso_bench.runner.config.typed import locate_target
from daso_bench.runner.records.json_lines import surviving
from daso_bench.runner.simulation.simulated_world import SimulatedRun, simulate
from daso_bench.runner.training.trainer import Trainer

NAMES = sorted(path.stem for path in (CONF / "strategy").glob("*.yaml"))
"""All strategies."""

PERIODS: dict[str, dict[str, Any]] = {
    "daso": {"warmup_epochs": 1, "cooldown_epochs": 1},
    "diloco": {"sync_every": 4},
    "ednncomm": {"sync_every": 4},
    "local_sgd": {"sync_every": 4},
    "post_local_sgd": {"sync_every": 4, "switch_samples": 96},
    "slowmo": {"sync_every": 4},
}
"""Keys for runs of a few dozen steps, where the default periods are too long."""


def strategy_class(name: str) -> Any:
    """The class that conf/strategy/<name>.yaml names."""
    return locate_target(yaml.safe_load((CONF / "strategy" / f"{name}.yaml").read_text()), "strategy")


@dataclass(frozen=True, kw_only=True)
class Blobs(Dataset):
    """Four classes of 1×4×4 images around four corners; learnable in a few steps."""

    samples: int = 96
    test_samples: int = 30
    augment: str = "none"

    name: ClassVar[str] = "blobs"

    def load(self) -> Data:
        """The same data on every rank."""

        def split(size: int, seed: int) -> Split:
            generator = torch.Generator().manual_seed(seed)
            labels = torch.arange(size) % 4
            images = torch.randn(size, 1, 4, 4, generator=generator)
            images += torch.nn.functional.one_hot(labels, 16).view(size, 1, 4, 4) * 3.0
            augment = recipe(self.augment, (4, 4))
            return Split(images=images.float(), labels=labels, mean=(0.0,), std=(1.0,), augment=augment)

        test = split(self.test_samples, 2)
        return Data(
            name=self.name,
            classes=4,
            shape=(1, 4, 4),
            train=split(self.samples, 1),
            validation=split(12, 3),
            test=test,
        )


@dataclass(frozen=True, kw_only=True)
class Awkward(Model):
    """Frozen, tied, zero-size and float64 parameters beside ordinary ones, batch norm and dropout."""

    name: str = "awkward"

    def build(self, spec: InputSpec) -> nn.Module:
        """A module for 4×4 images."""
        return AwkwardModule(spec.classes)


class AwkwardModule(nn.Module):
    """See `Awkward`."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.frozen = nn.Linear(16, 16)
        self.frozen.requires_grad_(False)
        self.tied = nn.Linear(16, 16)
        self.again = self.tied
        self.norm = nn.BatchNorm1d(16)
        self.dropout = nn.Dropout(0.2)
        self.nothing = nn.Parameter(torch.empty(0))
        self.head = nn.Linear(16, classes)
        self.scale = nn.Parameter(torch.ones(16, 2).t()[0])

    def forward(self, images: Tensor) -> Tensor:
        x = self.norm(self.tied(self.frozen(images.flatten(1))))
        x = self.dropout(torch.relu(self.again(x))) * self.scale + self.nothing.sum()
        return self.head(x)


@dataclass(frozen=True, kw_only=True)
class Raises(Model):
    """A model whose 9th forward pass raises on one rank of a real run."""

    rank: int
    name: str = "raises"

    def build(self, spec: InputSpec) -> nn.Module:
        """A linear model that counts."""
        return RaisesModule(16, spec.classes, f"rank {self.rank}")


class RaisesModule(nn.Module):
    """See `Raises`."""

    def __init__(self, inputs: int, classes: int, process: str) -> None:
        super().__init__()
        self.head = nn.Linear(inputs, classes)
        self.calls, self.process = 0, process

    def forward(self, images: Tensor) -> Tensor:
        self.calls += 1
        if self.calls == 9 and multiprocessing.current_process().name == self.process:
            raise RuntimeError("this model does not like me")
        return self.head(images.flatten(1))


@dataclass(frozen=True, kw_only=True)
class KilledOnce(Awkward):
    """An `Awkward` model that kills one rank of a real run at its 20th step, unless the file is there."""

    rank: int
    killed: str
    name: str = "killed_once"

    def build(self, spec: InputSpec) -> nn.Module:
        """The module of `Awkward`, with a hook."""
        module, steps = super().build(spec), count(1)

        def kill(module: nn.Module, inputs: object) -> None:
            here = multiprocessing.current_process().name == f"rank {self.rank}"
            if module.training and here and next(steps) == 20 and not Path(self.killed).exists():
                Path(self.killed).touch()
                os.kill(os.getpid(), signal.SIGKILL)

        module.register_forward_pre_hook(kill)
        return module


def config(
    strategy: str = "ddp",
    *,
    keys: dict[str, Any] | None = None,
    ranks: list[int] | None = None,
    seed: int = 0,
    model: Any = None,
    dataset: Any = None,
    optimizer: Any = None,
    results: Path = Path("/nowhere"),
    schedule: Any = None,
    run: dict[str, Any] | None = None,
    launcher: dict[str, Any] | None = None,
    **train: Any,
) -> RunConfig:
    """A run of 96 samples, batch 16: 6 steps an epoch; 2 nodes of 2 ranks."""
    kind = strategy_class(strategy)
    ranks = ranks or [2, 2]
    return RunConfig(
        strategy_class=kind,
        strategy=kind.Config(**(keys or {})),
        model=model or MLP(hidden=[12]),
        dataset=dataset or Blobs(),
        optimizer=optimizer or SGD(lr=0.05),
        schedule=schedule or Constant(),
        cluster=ClusterConfig(nodes=len(ranks), ranks_per_node=tuple(ranks)),
        launcher=LAUNCHERS[(launcher or {}).get("name", "local")](**(launcher or {})),
        train=TrainConfig(**{"epochs": 4, "global_batch_size": 16, **train}),
        seed=seed,
        run=RunInfo(**(run or {})),
        study=StudyInfo(),
        results_dir=results,
    )


def simulated(cfg: RunConfig, **more: Any) -> SimulatedRun:
    """The run in virtual time; `more`: as of `simulate`."""
    return simulate(cfg, cfg.dataset.load(), **more)


def evaluations(done: SimulatedRun) -> list[dict[str, Any]]:
    """The rows of a run's evaluations."""
    return [row for row in done.metrics.rows if row["kind"] == "evaluation"]


def judged(rows: list[dict[str, Any]], kinds: Sequence[str] = ("evaluation",)) -> list[tuple[Any, ...]]:
    """The rows of these kinds of a run's last attempts, without their times."""
    keys = ("step", "epoch", "samples", "accuracy", "correct", "loss", "train_loss", "learning_rate")
    return [tuple(row.get(key) for key in keys) for row in surviving(rows) if row["kind"] in kinds]


class Dies(Exception):
    """What ends a run of `dies_after`."""


class AsksAt:
    """Interrupts its rank from a step on."""

    def __init__(self, step: int) -> None:
        self.at, self.step = step, 0

    def progress(self, **numbers: Any) -> None:
        self.step = numbers.get("step", self.step)

    def interrupted(self) -> str | None:
        return "interrupt" if self.step >= self.at else None


def dies_after(step: int) -> type[Trainer]:
    """A loop that breaks off after so many steps."""

    class Mortal(Trainer):
        def step(self) -> None:
            if self.context.progress.step == step:
                raise Dies
            super().step()

    return Mortal


def whole_and_resumed(
    run: Callable[..., SimulatedRun], folder: Path, step: int
) -> tuple[SimulatedRun, SimulatedRun]:
    """A run to its end, and one that is broken off after `step` steps and resumed. `run`: as `simulate`."""
    whole = run(checkpoints=folder / "whole")
    try:
        run(checkpoints=folder / "broken", loop=dies_after(step))
    except Dies:
        return whole, run(checkpoints=folder / "broken", attempt=2)
    raise AssertionError(f"it ended before step {step}")


def assert_same_models(run: SimulatedRun, other: SimulatedRun) -> None:
    """Every rank's parameters and buffers have the same bits."""
    for mine, theirs in zip(run.contexts, other.contexts, strict=True):
        state = theirs.replica.model.state_dict()
        for name, value in mine.replica.model.state_dict().items():
            assert torch.equal(value, state[name]), name


__all__ = ["MLP", "Awkward", "Blobs", "Dies", "Raises", "SmallCNN", "config", "dies_after", "evaluations"]
