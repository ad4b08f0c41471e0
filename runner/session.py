"""One rank of one run, put together: model, data, strategy, clock and records, the same in every world."""

import logging
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from ..datasets.data import Data
from ..datasets.sampler import Sampler
from ..models.spec import InputSpec
from ..strategies.base import Strategy
from ..strategies.errors import ConfigError
from ..strategies.progress import Progress
from ..strategies.replica import Batch, Replica
from ..strategies.seeds import derive
from ..strategies.topology import WORLD
from .clock import Clock
from .marks import Marks
from .schema import RunConfig
from .traffic import CountedCommunicator
from .warmup import undone_step

log = logging.getLogger(__name__)

DTYPES = {"fp32": torch.float32, "fp64": torch.float64}


class Listener(Protocol):
    """Who is told how the run goes, and who may ask it to stop (the supervisor's link)."""

    def progress(self, **numbers: Any) -> None: ...

    def interrupted(self) -> str | None: ...


class Nobody:
    """A listener that listens to nothing."""

    def progress(self, **numbers: Any) -> None:
        return

    def interrupted(self) -> str | None:
        return None


class Rows(Protocol):
    """Where records go: a `RecordWriter`, or a list in tests."""

    def write(self, row: dict[str, Any]) -> None: ...


@dataclass(frozen=True)
class World:
    """What differs between real processes and virtual time.

    `common_clock`: whether all ranks' stamps come from one clock, so that waiting can be told from transfer.
    """

    name: str
    comm: CountedCommunicator
    make_replica: Callable[[nn.Module, nn.Module], Replica]
    device: torch.device
    common_clock: bool
    started_ns: int | None = None


@dataclass
class Session:
    """The state of one rank's run.

    `run.jsonl` rows go to `metrics` (rank 0 only, else None) and `own` (every rank).
    """

    config: RunConfig
    world: World
    data: Data
    own: Rows
    metrics: Rows | None
    listener: Listener = field(default_factory=Nobody)
    attempt: int = 1
    checkpoints: Path | None = None

    def __post_init__(self) -> None:
        config, comm = self.config, self.world.comm
        self.comm = comm
        self.clock = Clock(comm.now, comm.traffic, self.world.started_ns)
        self.dtype = DTYPES[config.train.precision]
        self.sampler = Sampler(
            len(self.data.train),
            config.train.global_batch_size,
            comm.topology.ranks,
            derive(config.seed, "data"),
            config.strategy_class.piece_shift,
        )
        self.progress = Progress(config.train.epochs, self.sampler.steps_per_epoch)
        self.total_samples = config.train.epochs * len(self.data.train)
        self.replica = self._replica()
        self.strategy: Strategy = config.strategy_class(config.strategy)
        every = config.train.eval_every_samples or len(self.data.train)
        self.evaluation_marks = Marks(every, config.train.eval_phase)
        self.checkpoint_marks = Marks(self._checkpoint_every())
        self.losses = torch.zeros(
            (), dtype=torch.float64, device=self.world.device
        )  # Σ n_r · loss since the last evaluation
        self.epoch_losses = torch.zeros_like(self.losses)
        self.finite = torch.ones((), dtype=torch.bool, device=self.world.device)
        self.loss_samples = self.epoch_samples = 0

    def prepare(self) -> None:
        """Make replicas equal, set the strategy up, and do one step that is undone.

        Ends `startup` up to the barrier.
        """
        self._equal_start()
        self.strategy.setup(self.replica, self.comm, self.progress)
        undone_step(self.replica, self._warmup_batch())
        self.comm.traffic.clear()

    def next_batch(self) -> Batch:
        """This rank's piece of the present global batch, on its device."""
        progress = self.progress
        indices = self.sampler.piece(progress.epoch, progress.batch, self.comm.rank)
        inputs, targets = self.data.train.batch(indices)
        return Batch(
            inputs.to(self.world.device, self.dtype), targets.to(self.world.device), progress.samples_of_rank
        )

    def set_learning_rate(self, step_samples: int) -> float:
        """Set the rate of the step that adds `step_samples` global samples.

        A function of global samples alone.
        """
        factor = self.config.schedule.factor(
            self.progress.samples + step_samples, self.total_samples, len(self.data.train)
        )
        rate = self.config.optimizer.lr * factor
        for group in self.replica.optimizer.param_groups:
            group["lr"] = rate
        return rate

    def _replica(self) -> Replica:
        channels, height, width = self.data.shape
        # The model's own random numbers come from torch's generator: give it this run's stream, then a stream
        # per rank.
        torch.manual_seed(derive(self.config.seed, "init"))
        model = self.config.model.build(InputSpec(channels, height, width, self.data.classes))
        model = model.to(self.world.device, self.dtype).train()
        torch.manual_seed(derive(self.config.seed, "dropout", self.comm.rank))
        self._check_batch_norm(model)
        replica = self.world.make_replica(model, nn.CrossEntropyLoss())
        replica.optimizer = self.config.optimizer.build(replica.parameters.tensors)
        return replica

    def _check_batch_norm(self, model: nn.Module) -> None:
        batches = {0, self.sampler.steps_per_epoch - 1}
        smallest = min(min(self.sampler.samples_of_rank(batch)) for batch in batches)
        if smallest < 2 and any(isinstance(m, nn.modules.batchnorm._BatchNorm) for m in model.modules()):
            size = self.config.train.global_batch_size
            raise ConfigError(
                f"train.global_batch_size={size}: gives a rank one sample, "
                f"which batch normalisation refuses; use at least 2 x {self.comm.topology.ranks} ranks"
            )

    def _checkpoint_every(self) -> int | None:
        every = self.config.train.checkpoint_every_samples
        if every == "auto":  # at most four times a run
            return math.ceil(self.config.train.epochs / 4) * len(self.data.train)
        assert every is None or isinstance(every, int)
        return every

    def _equal_start(self) -> None:
        """Rank 0's parameters and buffers on every rank, after all initialisation.

        The tables must agree first.
        """
        replica, ranks = self.replica, self.comm.topology.ranks
        digests = torch.zeros(2 * ranks, dtype=torch.int64)
        own = torch.tensor([replica.parameters.digest(), replica.buffers.digest()])
        self.comm.all_gather(digests, own, WORLD, channel="control").wait()
        if digests.view(ranks, 2).unique(dim=0).shape[0] > 1:
            raise RuntimeError("ranks built different models: names, shapes or types of parameters differ")
        for layout in (replica.parameters, replica.buffers):
            if layout.numel:
                flat = layout.pack()
                self.comm.broadcast(flat, 0, WORLD).wait()
                layout.unpack(flat)

    def _warmup_batch(self) -> Batch:
        """Noise of the first batch's shape: no sample of the data set is touched before the clock starts."""
        samples_of_rank = self.sampler.samples_of_rank(0)
        size = samples_of_rank[self.comm.rank]
        generator = torch.Generator().manual_seed(derive(self.config.seed, "warm-up"))
        inputs = torch.rand(size, *self.data.shape, generator=generator).to(self.world.device, self.dtype)
        targets: Tensor = torch.arange(size, device=self.world.device) % self.data.classes
        return Batch(inputs, targets, samples_of_rank)
