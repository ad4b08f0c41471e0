"""One rank of one run, put together: model, data, strategy, clock and records, the same in every world."""

import hashlib
import logging
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from ...datasets.data import Data
from ...datasets.sampler import Sampler
from ...models.spec import InputSpec
from ...strategies.asynchronous import AsynchronousStrategy
from ...strategies.base import Strategy
from ...strategies.errors import ConfigError
from ...strategies.progress import Plan, Progress
from ...strategies.replica import Batch, Replica
from ...strategies.seeds import derive
from ...strategies.topology import WORLD
from ..communication.traffic import CountedCommunicator
from ..config.batch_parts import check_batch_norm, normalises
from ..config.model_building import build
from ..config.reader_config import PackedReader
from ..config.schedules import Watch
from ..config.schema import RunConfig
from ..machine.run_queue import RunQueue
from . import compile
from .batch_order import Feed, GlobalFeed, OwnFeed
from .clock import Clock
from .deferred_evaluation import Copies
from .eval_schedule import Marks
from .loader import Ahead, Direct, Loader
from .packed.packed_loader import PackedLoader, ReaderFeed
from .packed.packed_set import PackedSet
from .precision import AUTOCAST, DTYPES, scaler_of
from .warm_up import undone_step

log = logging.getLogger(__name__)

FIRST_BATCHES = 100  # of which the record holds a digest


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


class Checks(Protocol):
    """What a world on modelled or emulated links and devices has checked; all ranks call it together."""

    def prepare(self, context: "TrainContext", replica: Any) -> None: ...

    def training(self, on: bool) -> None: ...

    def verdict(self, train_ns: int, *, finished: bool) -> dict[str, Any]: ...

    def state_dict(self, train_ns: int) -> dict[str, Any]: ...

    def load_state_dict(self, state: dict[str, Any]) -> None: ...


class Rows(Protocol):
    """Where records go: a `RecordWriter`, or a list in tests."""

    def write(self, row: dict[str, Any]) -> None: ...


@dataclass(frozen=True)
class Backend:
    """What differs between real processes and virtual time.

    `common_clock`: whether all ranks' stamps come from one clock, so that waiting can be told from transfer
    by comparing them. (In virtual time it is known at once.)
    `spend`: lets virtual time pass for what a rank does beside its steps: `data` of a step, `eval` of so many
    samples, `checkpoint`. Real time passes by itself. `batch`: makes
    this rank's batch from all ranks' sizes, where nothing is learnt and nothing judged. `parameters`: of the
    model that the run is about, where it is not the replica's. `remarks`: for the labels. `apparatus`: checks
    what makes links and devices slower than they are. `packed`: the file of the run's reader; `order_alone`:
    why the reader gives samples an order and reads none, in words. `untimed`: why no time of this run is to
    be used, as its ranks found when they met; for the labels too. `queue`: how long this rank stood ready and
    had no core; virtual time has none.
    """

    name: str
    comm: CountedCommunicator
    make_replica: Callable[[nn.Module, nn.Module], Replica]
    device: torch.device
    common_clock: bool
    started_ns: int | None = None
    spend: Callable[[str, int], None] = lambda what, samples: None
    batch: Callable[[tuple[int, ...]], Batch] | None = None
    parameters: int | None = None
    remarks: tuple[str, ...] = ()
    apparatus: Checks | None = None
    packed: PackedSet | None = None
    order_alone: str | None = None
    untimed: tuple[str, ...] = ()
    queue: RunQueue | None = None


def seed_generators(seed: int) -> None:
    """Seed torch's own random generators.

    `torch.manual_seed` also notes the seed, with a stack trace, for each kind of device that is not there: a
    millisecond, of a thousand virtual ranks a second.
    """
    torch.default_generator.manual_seed(seed)
    if torch.cuda.is_available():
        torch.cuda.manual_seed_all(seed)


@dataclass
class TrainContext:
    """The state of one rank's run.

    `run.jsonl` rows go to `metrics` (rank 0 only, else None) and `own` (every rank).
    """

    config: RunConfig
    backend: Backend
    data: Data
    own: Rows
    metrics: Rows | None
    listener: Listener = field(default_factory=Nobody)
    attempt: int = 1
    checkpoints: Path | None = None

    def __post_init__(self) -> None:
        config, comm = self.config, self.backend.comm
        self.comm = comm
        self.clock = Clock(comm.now, comm.traffic, self.backend.started_ns)
        self.dtype = DTYPES[config.train.precision]
        self.autocast = AUTOCAST.get(config.train.precision)
        # preserve_format: as they come.
        self.memory_format = torch.channels_last if config.train.channels_last else torch.preserve_format
        self.task = config.task(self.data.classes)
        self.sampler = Sampler(
            len(self.data.train),
            config.train.global_batch_size,
            comm.topology.ranks,
            derive(config.seed, "data"),
            config.strategy_class.piece_shift,
            short_batch=config.train.short_batch,
        )
        self.independent = issubclass(config.strategy_class, AsynchronousStrategy)
        self.feed: Feed = self._feed()
        self.loader: Loader = self._loader()
        self.total_samples = config.train.epochs * (len(self.data.train) - self.sampler.left_out)
        self.progress = Progress(
            config.train.epochs,
            self.sampler.steps_per_epoch,
            budget=self._budget(),
            global_batch_size=config.train.global_batch_size,
            first_decay=config.schedule.first_decay(self.total_samples, len(self.data.train)),
        )
        self.replica = self._replica()
        self.strategy: Strategy = config.strategy_class(config.strategy)
        self.eval_every = config.train.eval_every_samples or len(self.data.train)
        self.evaluation_marks = Marks(self.eval_every, config.train.eval_phase)
        self.judged_samples = 0  # global samples up to which marks have been looked at
        self.owed = False  # whether the last step's marks are still to be looked at
        self.rate = 0.0  # learning rate of the last step
        self.watch = Watch() if config.watches_loss else None  # of a schedule that waits for a plateau
        self.deferred = False
        self.compile_s: float | None = None  # of the warm-up, with train.compile
        self.digests: dict[str, str | None] = {}  # rank 0's
        self.copies = Copies()
        self.checkpoint_marks = Marks(None)  # known when the strategy is set up
        self.saved_samples = 0  # global samples up to which checkpoint marks have been looked at
        self.saves_between = 0  # checkpoints for which ranks had to wait
        # Σ n_r · loss since the last evaluation, of the epoch, and ever; one that is not finite stays in the
        # last. One tensor: adding to all three is one operation of a step.
        self.loss_sums = torch.zeros(3, dtype=torch.float64, device=self.backend.device)
        self.losses, self.epoch_losses, self.all_losses = self.loss_sums.unbind()
        self.loss_samples = self.epoch_samples = 0
        self.trained_samples = 0  # of this rank, ever

    def prepare(self) -> None:
        """Make replicas equal, set the strategy up, and do one step that is undone.

        Ends `startup` up to the barrier.
        """
        self._equal_start()
        if self.metrics is not None:
            self.digests = self._digests()
        train, config = self.config.train, self.config
        plan = Plan(
            self.comm.topology,
            train.epochs,
            train.global_batch_size,
            self.sampler.steps_per_epoch,
            min(self.progress.steps, train.max_steps or self.progress.steps),
        )
        config.strategy_class.check(config.strategy, plan)
        self.strategy.setup(self.replica, self.comm, self.progress)
        # A rank may own no parameter at all; optimizers refuse an empty list.
        self.replica.optimizer = config.optimizer.build(
            self.replica.stepped or [self.replica.parameters.empty()[:0]]
        )
        self.replica.noise = self._noise
        undone_step(self.replica, self._warmup_batch(), self.comm)
        if config.train.compile:
            batches = (Batch(*self._noise(sizes[self.comm.rank]), sizes) for sizes in self.feed.extremes())
            self.compile_s = compile.warm_up(self.replica, batches, self.comm)
        self._choose_evaluation()
        self.checkpoint_marks = Marks(self._checkpoint_every())
        if self.backend.apparatus is not None:
            self.backend.apparatus.prepare(self, self.replica)
        self.clock.on_training = self._training
        self.clock.wait_pending = lambda: self.replica.wait_pending()
        self.loader.prepare()
        self.comm.traffic.clear()

    def share(self) -> None:
        """Ask the strategy how the coming epoch's global batches are split."""
        if isinstance(self.feed, GlobalFeed):
            before, self.feed.shares = self.feed.shares, self.strategy.shares(self.progress)
            if self.feed.shares != before:
                self.loader.restart()

    def next_batch(self) -> Batch:
        """This rank's next samples, on its device."""
        if self.backend.batch is not None:
            self.backend.spend("data", 0)
            return self.backend.batch(self.progress.samples_of_rank)
        inputs, targets = self.loader.next(self.progress)
        self.backend.spend("data", len(targets))
        device = self.backend.device
        if device.type == "cuda" and not inputs.is_pinned():
            # The copy of ordinary memory would wait for all that the GPU still has to do.
            inputs, targets = inputs.pin_memory(), targets.pin_memory()
        return Batch(
            inputs.to(device, self.dtype, non_blocking=True, memory_format=self.memory_format),
            targets.to(device, non_blocking=True),
            self.progress.samples_of_rank,
        )

    def set_learning_rate(self) -> None:
        """Set the rate of the step to come: a function of the global samples before it and with it.

        Of other ranks' samples only those count that are known to be there.
        """
        strategy, before = self.strategy, self.progress.samples
        if isinstance(strategy, AsynchronousStrategy):
            before = strategy.global_samples(self.progress)
        after = before + self.feed.counted(self.progress.samples_of_rank)
        factor = self.config.schedule.factor(before, after, self.total_samples, len(self.data.train))
        if self.watch is not None:
            factor *= self.watch.factor
        self.rate = self.config.optimizer.lr * factor
        for group in self.replica.optimizer.param_groups:
            group["lr"] = self.rate

    def over(self) -> bool:
        """Whether the schedule, or `train.max_steps` of it, is done; with own steps asked where ranks met."""
        progress, limit = self.progress, self.config.train.max_steps
        if isinstance(self.strategy, AsynchronousStrategy):
            return self.strategy.ended(progress)
        return progress.epoch == progress.epochs or (limit is not None and progress.step >= limit)

    @property
    def stops_from_copies(self) -> bool:
        """Whether copies are judged where ranks meet, to stop at the target: nobody waits for it there."""
        return self.deferred and self.config.train.stop != "budget" and not self.strategy.never_syncs

    def pauses(self, inline: int) -> list[str]:
        """Remarks on what stops cost this strategy; `inline` counts evaluations, the last one's included."""
        stop, never_syncs, remarks = self.config.train.stop, self.strategy.never_syncs, []
        if never_syncs and self.deferred and stop != "budget":
            remarks.append(
                f"train.stop={stop} stops no strategy without sync points: copies are judged later"
            )
        if never_syncs and not self.deferred and inline > 1:
            remarks.append("evaluated inline without sync points: ranks waited for every evaluation")
        if self.saves_between:
            remarks.append(f"checkpoints that made ranks wait: {self.saves_between}")
        return remarks

    def cut_short(self) -> str | None:
        """The remark on a run that `train.max_steps` has ended before its schedule."""
        progress, limit = self.progress, self.config.train.max_steps
        if limit is None or progress.epoch == progress.epochs:
            return None
        reached = progress.samples >= progress.budget if self.independent else progress.step >= limit
        return f"stopped by train.max_steps={limit}" if reached else None

    def _feed(self) -> Feed:
        config, topology = self.config, self.comm.topology
        if isinstance(config.reader, PackedReader):
            assert self.backend.packed is not None, "who makes the world opens the file"
            nodes, seed = topology.ranks_of_nodes, derive(config.seed, "data")
            return ReaderFeed(self.sampler, self.comm.rank, nodes, config.reader, self.backend.packed, seed)
        if not self.independent:
            return GlobalFeed(self.sampler, self.comm.rank)
        batch = config.train.global_batch_size
        return OwnFeed(topology, self.comm.rank, len(self.data.train), batch, config.seed)

    def _loader(self) -> Loader:
        launcher, seed = self.config.launcher, derive(self.config.seed, "augmentation")
        if isinstance(self.feed, ReaderFeed) and self.backend.order_alone is None:
            return PackedLoader(self.feed, self.data.train, seed, self.comm)
        if launcher.loader_workers == 0:
            return Direct(self.data.train, self.feed, seed)
        return Ahead(
            self.data.train,
            self.feed,
            seed,
            workers=launcher.loader_workers,
            prefetch=launcher.prefetch_batches,
            pin=self.backend.device.type == "cuda",
        )

    def _training(self, on: bool) -> None:
        """Training begins or pauses: who works beside it goes on or stands still."""
        if self.config.train.compile:
            compile.training(on)
        self.loader.training(on)
        if self.backend.queue is not None:
            self.backend.queue.training(on)
        if self.backend.apparatus is not None:
            self.backend.apparatus.training(on)

    def _budget(self) -> int:
        limit = self.config.train.max_steps
        if limit is None:
            return self.total_samples
        return min(self.total_samples, limit * self.config.train.global_batch_size)

    def _choose_evaluation(self) -> None:
        """Whether models are evaluated at once or from copies, and how many copies there is memory for."""
        train, strategy = self.config.train, self.strategy
        self.deferred = train.eval_mode == "deferred" or (
            train.eval_mode == "auto"
            and (strategy.never_syncs or strategy.samples_between_syncs > self.eval_every)
        )
        if self.deferred:
            element = self.replica.parameters.empty().element_size()
            numel = self.backend.parameters or self.replica.numel
            size = max(1, (numel + self.replica.buffers.numel) * element)
            # Between two checkpoints at most; those evaluate what is waiting.
            most = self.progress.budget // self.eval_every + 1
            self.copies = Copies(slots=max(1, min(most, int(train.eval_copies_mib * 2**20) // size)))
            if isinstance(self.strategy, AsynchronousStrategy):
                self.strategy.reserve(self.copies.slots)

    def _replica(self) -> Replica:
        channels, height, width = self.data.shape
        # The model's own random numbers come from torch's generator: give it this run's stream, then a stream
        # per rank.
        seed_generators(derive(self.config.seed, "init"))
        model = build(self.config.model, InputSpec(channels, height, width, self.data.classes))
        model = model.to(self.backend.device, self.dtype, memory_format=self.memory_format).train()  # pyright: ignore[reportCallIssue] (PyTorch's stub has each alone)
        seed_generators(derive(self.config.seed, "dropout", self.comm.rank))
        if normalises(model):
            check_batch_norm(self.sampler, self.config.train.accumulate)
        replica = self.backend.make_replica(model, self.task.criterion())
        replica.accumulate = self.config.train.accumulate
        if self.backend.batch is None:  # else there are no numbers
            replica.autocast = self.autocast
            replica.scaler = scaler_of(self.config.train.precision, self.backend.device)
        return replica

    def _checkpoint_every(self) -> int | None:
        every = self.config.train.checkpoint_every_samples
        if every == "auto" and self.strategy.never_syncs:
            return None  # it would make ranks wait that never do; an interrupted run saves in any case
        if every == "auto":  # at most four times a run
            return math.ceil(self.config.train.epochs / 4) * len(self.data.train)
        assert every is None or isinstance(every, int)
        return every

    def _equal_start(self) -> None:
        """Rank 0's parameters and buffers on every rank, after all initialisation.

        The tables must agree first.
        """
        replica, ranks = self.replica, self.comm.topology.ranks
        files = int.from_bytes(hashlib.blake2b(self.data.files.encode(), digest_size=8).digest(), signed=True)
        digests = torch.zeros(3 * ranks, dtype=torch.int64)
        own = torch.tensor([files, replica.parameters.digest(), replica.buffers.digest()])
        self.comm.all_gather(digests, own, WORLD, channel="control").wait()
        others = digests.view(ranks, 3) != digests[:3]
        if others[:, 0].any():
            where = ", ".join(map(str, others[:, 0].nonzero().flatten().tolist()))
            raise ConfigError(
                f"the files of the data set are others on rank {where} than on rank 0 (names, labels, "
                "sizes); each node needs the same: copy them, and daso-bench prepare there"
            )
        if others.any():
            raise RuntimeError("ranks built different models: names, shapes or types of parameters differ")
        for layout in (replica.parameters, replica.buffers):
            if layout.numel:
                flat = layout.pack()
                self.comm.broadcast(flat, 0, WORLD).wait()
                layout.unpack(flat)

    def _digests(self) -> dict[str, str | None]:
        """What two runs that are compared must have in common: initial weights and the order of the data.

        None where there is no common order, or no weights (clocks alone).
        """
        layout, common = self.replica.parameters, isinstance(self.feed, GlobalFeed)
        ordered = self.feed if isinstance(self.feed, ReaderFeed) else self.sampler
        weights = (
            layout.pack()[: layout.numel].detach().cpu().contiguous().numpy().tobytes()
            if layout.numel
            else b""
        )
        return {
            **({"files": self.data.files} if self.data.files else {}),
            "initial_weights": hashlib.blake2b(weights, digest_size=8).hexdigest() if weights else None,
            "first_batches": ordered.digest(FIRST_BATCHES) if common else None,
        }

    def _warmup_batch(self) -> Batch:
        """Noise of the first batch's shape: no sample of the data set is touched before the clock starts."""
        samples_of_rank = self.sampler.samples_of_rank(0)
        size = samples_of_rank[self.comm.rank]
        return Batch(*self._noise(size), samples_of_rank)

    def _noise(self, size: int) -> tuple[Tensor, Tensor]:
        generator = torch.Generator().manual_seed(derive(self.config.seed, "warm-up"))
        inputs = torch.rand(size, *self.data.shape, generator=generator)
        inputs = inputs.to(self.backend.device, self.dtype, memory_format=self.memory_format)
        return inputs, self.task.noise(size, *self.data.shape[1:]).to(self.backend.device)
