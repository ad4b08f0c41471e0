"""The training context of one rank: model, data, strategy, clock and records, for every backend."""

import hashlib
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from ...datasets.data import Data
from ...datasets.stream_seeds import stream_seed
from ...strategies.base import AsynchronousStrategy, Strategy
from ...strategies.communicator import Communicator
from ...strategies.errors import ConfigError
from ...strategies.progress import Plan, Progress
from ...strategies.replica import Batch, Replica
from ...strategies.topology import WORLD
from ..communication.traffic import CountedCommunicator
from ..config.run_config import RunConfig
from ..config.schedules import Watch
from ..records.rows import RecordRow
from .callbacks import Callback
from .clock import Clock
from .eval_schedule import EvalSchedule
from .precision import AUTOCAST, DTYPES, scaler_of
from .state import LossSums, TrainState
from .workload import Workload, memory_format, workload_of

FIRST_BATCHES = 100  # the record holds a digest of them


class Listener(Protocol):
    """Receives the progress of the run, and may ask it to stop (the supervisor's link)."""

    def progress(self, **numbers: Any) -> None: ...

    def interrupted(self) -> str | None: ...


class Rows(Protocol):
    """Receives rows of records: a `RecordWriter`, or a list in tests."""

    def write(self, row: dict[str, Any]) -> None: ...


@dataclass(frozen=True)
class Backend:
    """What differs between real processes and virtual time.

    `common_clock`: all ranks' stamps come from one clock, so that comparing them separates waiting from
    transfer. (Virtual time knows both without stamps.)
    `started_ns`: when this rank's process began; None: now.
    `spend`: adds virtual time for work outside of a step's computation: `data`, `eval` (with the number of
    samples), `checkpoint`. Real time passes by itself.
    `callbacks`: the backend's own callbacks. `remarks`: labels of the run. `untimed`: reasons why no time of
    this run may be used; they are labels too. `make_workload`: makes model, task, batch order and loader.
    `make_batch`: makes this rank's batch from all ranks' sizes, where nothing is computed or evaluated.
    `parameters`: number of the model's parameters, where the replica has none.
    """

    name: str
    comm: CountedCommunicator
    make_replica: Callable[[nn.Module, nn.Module], Replica]
    device: torch.device
    common_clock: bool = False
    started_ns: int | None = None
    spend: Callable[[str, int], None] = lambda what, samples: None
    callbacks: Sequence[Callback] = ()
    remarks: tuple[str, ...] = ()
    untimed: tuple[str, ...] = ()
    make_workload: Callable[[RunConfig, Data, CountedCommunicator, torch.device], Workload] = workload_of
    make_batch: Callable[[tuple[int, ...]], Batch] | None = None
    parameters: int | None = None


@dataclass
class TrainContext:
    """One rank of a run. Its mutable part, which a checkpoint saves, is `state`.

    Rows of records go to `metrics` (rank 0 only, else None) and `rank_rows` (every rank).
    """

    config: RunConfig
    backend: Backend
    data: Data
    rank_rows: Rows
    metrics: Rows | None
    listener: Listener | None = None
    attempt: int = 1
    checkpoints: Path | None = None

    def __post_init__(self) -> None:
        config, backend = self.config, self.backend
        self.comm = backend.comm
        self.clock = Clock(self.comm.now, self.comm.traffic, backend.started_ns)
        self.dtype = DTYPES[config.train.precision]
        self.autocast = AUTOCAST.get(config.train.precision)
        self.memory_format = memory_format(config)
        self.workload = backend.make_workload(config, self.data, self.comm, backend.device)
        self.task, self.loader = self.workload.task, self.workload.loader
        self.batch_order = self.workload.batch_order
        self.independent = issubclass(config.strategy_class, AsynchronousStrategy)
        self.total_samples = config.train.epochs * self.batch_order.samples_per_epoch
        self.progress = self._progress()
        self.replica = self._replica()
        self.strategy: Strategy = config.strategy_class(config.strategy)
        self.callbacks: Sequence[Callback] = (self.loader, *backend.callbacks)
        self.eval_every = config.train.eval_every_samples or len(self.data.train)
        self.state = TrainState(
            run_id="" if self.checkpoints is None else config.run_id,
            ranks_of_nodes=self.comm.topology.ranks_of_nodes,
            device=backend.device,
            progress=self.progress,
            batch_order=self.batch_order,
            replica=self.replica,
            strategy=self.strategy,
            callbacks=self.callbacks,
            traffic=self.comm.traffic,
            clock=self.clock,
            losses=LossSums(backend.device),
            schedule=EvalSchedule(self.eval_every, config.train.eval_phase),
            watch=Watch() if config.schedule.reads_epoch_loss else None,
        )
        self.digests: dict[str, str | None] = {}  # rank 0's

    def prepare(self) -> None:
        """Make replicas equal, set the strategy up, and do one step that is undone. Counts as startup."""
        self._equal_start()
        if self.metrics is not None:
            self.digests = self._digests()
        train, config = self.config.train, self.config
        self.plan = Plan(
            self.comm.topology,
            train.epochs,
            train.global_batch_size,
            self.progress.steps_per_epoch,
            min(self.progress.steps, train.max_steps or self.progress.steps),
        )
        config.strategy_class.check(config.strategy, self.plan)
        self.strategy.setup(self.replica, self.comm, self.progress)
        # A rank may have no parameter to step; optimizers refuse an empty list.
        self.replica.optimizer = config.optimizer.build(
            self.replica.stepped or [self.replica.parameters.empty()[:0]]
        )
        self.replica.noise = self._noise
        # Noise in the shape of the first batch: no sample is read before the clock starts.
        sizes = self.batch_order.first_sizes()
        undone_step(self.replica, Batch(*self._noise(sizes[self.comm.rank]), sizes), self.comm)
        self._choose_evaluation()
        for callback in self.callbacks:
            callback.on_prepared(self.replica, self.batch_order)
        self.clock.on_training = self._training
        self.clock.wait_pending = lambda: self.replica.wait_pending()
        self.comm.traffic.clear()

    def report(self, **numbers: Any) -> None:
        """Tell the listener, if there is one, of the run's progress."""
        if self.listener is not None:
            self.listener.progress(**numbers)

    def write_row(self, row: RecordRow) -> None:
        """Write a row into this rank's file, and on rank 0 into that of the run."""
        fields = row.as_row()
        self.rank_rows.write(fields)
        if self.metrics is not None:
            self.metrics.write(fields)

    def interrupted(self) -> bool:
        """Whether the listener asks the run to stop."""
        return self.listener is not None and self.listener.interrupted() is not None

    def share(self) -> None:
        """Ask the strategy how the coming epoch's global batches are split."""
        if not self.independent:
            before, self.batch_order.shares = self.batch_order.shares, self.strategy.shares(self.progress)
            if self.batch_order.shares != before:
                self.loader.restart()

    def next_batch(self) -> Batch:
        """This rank's next samples, on its device."""
        if self.backend.make_batch is not None:
            self.backend.spend("data", 0)
            return self.backend.make_batch(self.progress.samples_of_rank)
        inputs, targets = self.loader.next(self.progress)
        self.backend.spend("data", len(targets))
        device = self.backend.device
        if device.type == "cuda" and inputs.device.type == "cpu" and not inputs.is_pinned():
            # The copy of ordinary memory would wait for all that the GPU still has to do.
            inputs, targets = inputs.pin_memory(), targets.pin_memory()
        return Batch(
            inputs.to(device, self.dtype, non_blocking=True, memory_format=self.memory_format),
            targets.to(device, non_blocking=True),
            self.progress.samples_of_rank,
        )

    def over(self) -> bool:
        """Whether the schedule, or `train.max_steps` of it, is done.

        With independent sampling it is asked only at sync points.
        """
        progress, limit = self.progress, self.config.train.max_steps
        if isinstance(self.strategy, AsynchronousStrategy):
            return self.strategy.ended(progress)
        return progress.epoch == progress.epochs or (limit is not None and progress.step >= limit)

    def pauses(self, inline: int) -> list[str]:
        """Labels on pauses that made ranks wait; `inline`: number of inline evaluations, with the last."""
        stop, never_syncs, remarks = self.config.train.stop, self.strategy.never_syncs, []
        schedule = self.state.schedule
        if never_syncs and schedule.deferred and stop != "budget":
            remarks.append(
                f"train.stop={stop} stops no strategy without sync points: copies are judged later"
            )
        if never_syncs and not schedule.deferred and inline > 1:
            remarks.append("evaluated inline without sync points: ranks waited for every evaluation")
        if schedule.saves_that_waited:
            remarks.append(f"checkpoints that made ranks wait: {schedule.saves_that_waited}")
        return remarks

    def cut_short(self) -> str | None:
        """The label of a run that `train.max_steps` ended before its schedule."""
        progress, limit = self.progress, self.config.train.max_steps
        if limit is None or progress.epoch == progress.epochs:
            return None
        reached = progress.samples >= progress.budget if self.independent else progress.step >= limit
        return f"stopped by train.max_steps={limit}" if reached else None

    def _training(self, on: bool) -> None:
        """Call the callbacks when training begins (`on`) or pauses."""
        for callback in self.callbacks:
            (callback.on_train_start if on else callback.on_pause)()

    def _progress(self) -> Progress:
        train, total = self.config.train, self.total_samples
        budget = total if train.max_steps is None else min(total, train.max_steps * train.global_batch_size)
        return Progress(
            train.epochs,
            self.batch_order.steps_per_epoch,
            budget=budget,
            global_batch_size=train.global_batch_size,
            first_decay=self.config.schedule.first_decay(total, len(self.data.train)),
        )

    def _replica(self) -> Replica:
        replica = self.backend.make_replica(self.workload.model, self.task.criterion())
        replica.accumulate = self.config.train.accumulate
        if self.backend.make_batch is None:  # else nothing is computed
            replica.autocast = self.autocast
            replica.scaler = scaler_of(self.config.train.precision, self.backend.device)
        return replica

    def _choose_evaluation(self) -> None:
        """Choose inline or deferred evaluation, the number of copies, and when checkpoints are written."""
        train, strategy, schedule = self.config.train, self.strategy, self.state.schedule
        schedule.save_every = self._checkpoint_every()
        schedule.save_anywhere = train.checkpoint_every_samples != "auto"
        schedule.deferred = train.eval_mode == "deferred" or (
            train.eval_mode == "auto"
            and (strategy.never_syncs or strategy.samples_between_syncs > self.eval_every)
        )
        if not schedule.deferred:
            return
        schedule.stops_from_copies = train.stop != "budget" and not strategy.never_syncs
        element = self.replica.parameters.empty().element_size()
        numel = self.backend.parameters or self.replica.numel
        size = max(1, (numel + self.replica.buffers.numel) * element)
        # No more than a run can need: checkpoints evaluate what is waiting.
        most = self.progress.budget // self.eval_every + 1
        schedule.slots = max(1, min(most, int(train.eval_copies_mib * 2**20) // size))
        if isinstance(strategy, AsynchronousStrategy):
            strategy.reserve(schedule.slots)

    def _checkpoint_every(self) -> int | None:
        every = self.config.train.checkpoint_every_samples
        if every == "auto" and self.strategy.never_syncs:
            return None  # ranks that never wait would have to; an interrupted run saves in any case
        if every == "auto":  # at most four times a run
            return math.ceil(self.config.train.epochs / 4) * len(self.data.train)
        assert every is None or isinstance(every, int)
        return every

    def _equal_start(self) -> None:
        """Give every rank the parameters and buffers of rank 0, after all initialisation.

        Raises:
            ConfigError: ranks have different data files.
            RuntimeError: ranks have built different models.
        """
        replica = self.replica
        files = int.from_bytes(hashlib.blake2b(self.data.files.encode(), digest_size=8).digest(), signed=True)
        of_rank = torch.tensor([files, replica.parameters.digest(), replica.buffers.digest()])
        digests = self.comm.gather(of_rank)
        differ = digests != digests[0]
        if differ[:, 0].any():
            where = ", ".join(map(str, differ[:, 0].nonzero().flatten().tolist()))
            raise ConfigError(
                f"the files of the data set are others on rank {where} than on rank 0 (names, labels, "
                "sizes, content); each node needs the same: copy them, and daso-bench prepare there"
            )
        if differ.any():
            raise RuntimeError("ranks built different models: names, shapes or types of parameters differ")
        for layout in (replica.parameters, replica.buffers):
            if layout.numel:
                flat = layout.pack()
                self.comm.broadcast(flat, 0, WORLD).wait()
                layout.unpack(flat)

    def _digests(self) -> dict[str, str | None]:
        """Digests of data files, initial weights and data order, which compared runs must share.

        None where ranks have no common order, or nothing is computed.
        """
        weights = self.replica.parameters.pack().cpu().numpy().tobytes()
        return {
            **({"files": self.data.files} if self.data.files else {}),
            "initial_weights": hashlib.blake2b(weights, digest_size=8).hexdigest() if weights else None,
            "first_batches": self.batch_order.digest(FIRST_BATCHES),
        }

    def _noise(self, size: int) -> tuple[Tensor, Tensor]:
        generator = torch.Generator().manual_seed(stream_seed(self.config.seed, "warm-up"))
        inputs = torch.rand(size, *self.data.shape, generator=generator)
        inputs = inputs.to(self.backend.device, self.dtype, memory_format=self.memory_format)
        return inputs, self.task.noise(size, *self.data.shape[1:]).to(self.backend.device)


def undone_step(replica: Replica, batch: Batch, comm: Communicator) -> None:
    """Forward, backward, gradient averaging and optimizer step on `batch`; then restore all state.

    It builds what is built lazily (kernels, connections, optimizer state) before the clock starts. It also
    makes a resumed run continue bit for bit: a new DistributedDataParallel reduces its first step in another
    bucket layout than all later ones, at start and at resume; here that step is undone.

    Ranks of a node may share their parameters: no rank steps before all have saved them and ended backward,
    and none goes on before all have restored them.
    """
    with replica.untouched():
        replica.compute_gradients(batch)
        comm.barrier(WORLD)
        replica.step()
        comm.barrier(WORLD)
    comm.barrier(WORLD)
