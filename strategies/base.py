"""The contract of a data-parallel strategy: what ranks communicate, and when.

The trainer owns forward, backward, optimizer, schedule, clipping, precision and data. It calls the strategy:

    strategy.before_batch(progress)
    loss = replica.compute_gradients(batch)
    strategy.before_step(progress)
    optimizer step
    strategy.after_step(progress)
    if strategy.is_sync_point(progress): evaluate, save or stop, where that is due

A new strategy is one file with a subclass of `Strategy`, and one YAML whose `_target_` names the class. If
ranks train at their own pace, the class is a subclass of `AsynchronousStrategy`; if models move apart for a
round of steps and are then averaged, of `PeriodicStrategy`.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, ClassVar

from torch import Tensor

from .communicator import Communicator
from .errors import ConfigError
from .progress import Plan, Progress, RankMemory
from .replica import Replica
from .topology import WORLD


@dataclass(frozen=True)
class Shares:
    """How global batches are split: `values` are samples of each rank in a full batch, in rank order.

    Other batches are cut in the same ratio by largest remainders; there a piece of fewer than `minimum`
    samples, but not 0, goes to the rank with the largest.
    """

    values: tuple[int, ...]
    minimum: int = 1


class Strategy(ABC):
    """One rank's part of a data-parallel strategy.

    A subclass must define `setup`. The defaults of all other methods are right for a strategy that averages
    gradients over all ranks in every step, so that replicas stay equal. A strategy whose replicas differ
    between two sync points also defines `stop_agreed`, `is_sync_point`, `averaged_model` and `finalize`, and
    sets `samples_between_syncs` in `setup`. A strategy that a resume must restore names its attributes in
    `remembers`. All ranks call the methods in the same order; only `before_batch` to `after_epoch` of
    an `AsynchronousStrategy` are called at each rank's own pace.

    Class attributes:
        Config: the frozen dataclass of the strategy's keys.
        piece_shift: rank r gets piece (r + piece_shift) mod R of each global batch.
        reads_epoch_loss: `after_epoch` reads `progress.epoch_loss`, which costs one all-reduce of two numbers
            in each epoch.
        needs_numbers: (key, value) pairs. With such a value the bytes sent depend on trained numbers, or the
            strategy keeps gradients of earlier steps.
        may_differ: keys of the configuration, or of the fairness table (runner/report/claims/recorded.py),
            or their beginnings, that may differ from the baseline's in a fair comparison. A strategy that
            declares more than `MAY_DIFFER` (runner/report/claims/fairness.py) gets no verdict.
        tuned: at most three keys of `Config`, each with the values that `daso-bench tune` tries in addition
            to what it tries for all strategies. Values that `check` refuses are failed trials.
        remembers: attributes that this rank needs for a resume beside the replica: tensors, numbers, strings,
            lists, dicts.
        caveats: sentences that the report prints with every number of this strategy.

    Attributes that `setup` may set:
        samples_between_syncs: the most global samples between two sync points; 0: every step is one. If an
            evaluation is due more often, models are evaluated later, from snapshots.
        never_syncs: ranks never all wait for each other in training, so an evaluation or a checkpoint costs
            training time wherever it is. Models are evaluated from snapshots.
        copies_are_whole: a snapshot is the whole model, which no average has to complete.
    """

    Config: ClassVar[type]
    piece_shift: ClassVar[int] = 0
    reads_epoch_loss: ClassVar[bool] = False
    needs_numbers: ClassVar[tuple[tuple[str, Any], ...]] = ()
    may_differ: ClassVar[tuple[str, ...]] = ("strategy",)
    tuned: ClassVar[tuple[tuple[str, tuple[Any, ...]], ...]] = ()
    remembers: ClassVar[tuple[str, ...]] = ()
    caveats: ClassVar[tuple[str, ...]] = ()

    samples_between_syncs: float = 0
    never_syncs: bool = False
    copies_are_whole: bool = False

    replica: Replica
    comm: Communicator

    def __init__(self, config: Any) -> None:
        self.config = config

    @classmethod
    def check(cls, config: Any, plan: Plan) -> None:
        """Refuse a run that this strategy cannot do, before any process starts.

        Raises ConfigError: one sentence that says what was given, what is allowed, and where.
        """

    @classmethod
    def communication_share(cls, config: Any, plan: Plan, steps: int) -> float:
        """The least share, 0 to 1, of the first `steps` steps (1 or more) that end in a blocking global sum.

        A step counts if its sum is of the whole model and over all nodes, so that it costs at least what a
        step of `ddp` waits. It gives the arm its own ceiling (docs/method.md, "Why an arm is faster").
        Default 0: no such step is known, and the ceiling is the bound of all arms.
        """
        return 0.0

    @classmethod
    def copies_held(cls, config: Any, plan: Plan, memory: RankMemory) -> float:
        """Copies of the model (parameters and floating-point buffers) that a rank has at the most.

        For the memory plan of `launcher=simulated`, which itself counts parameters, gradients, momenta and
        the vector of sums; below 0 where ranks of a node share some of them. Default: one, that undoes the
        first step, and those that wait to be judged.
        """
        return 1 + memory.copies()

    @abstractmethod
    def setup(self, replica: Replica, comm: Communicator, progress: Progress) -> None:
        """Keep `replica` and `comm`, ask for gradient averaging, bind memory, allocate.

        Replicas are equal already. The optimizer does not exist yet.
        """

    # ---------------------------------------------------------------- training

    def shares(self, progress: Progress) -> Shares | None:
        """How the global batches of the coming epoch are split over ranks; None: equally.

        Called before each epoch, and when a run is resumed inside an epoch (`progress.batch` > 0): then the
        result must be the one of the interrupted run.
        """
        return None

    def before_batch(self, progress: Progress) -> None:
        """A step begins. Until `after_step` returns, nobody evaluates, saves or stops."""

    def before_step(self, progress: Progress) -> None:
        """Gradients are computed: change them into those that the optimizer applies."""

    def after_step(self, progress: Progress) -> None:
        """The optimizer has changed the parameters: mix them."""

    def after_epoch(self, progress: Progress) -> None:
        """An epoch has ended; its last `after_step` has returned."""

    def stop_agreed(self, progress: Progress, stop_requested: bool) -> bool:
        """True on every rank from the step at which all ranks know of a stop request or a non-finite loss.

        `stop_requested`: a rank of this rank's gradient group requests a stop, or its loss is not finite. The
        result must be equal on all ranks after every step, and must come from messages that ranks exchange
        anyway. Once it is true, the trainer asks all ranks over the control channel for the reason. The
        default is right for strategies that average gradients over all ranks in each step. Raises
        NotImplementedError: the strategy does not do so and has no `stop_agreed` of its own.
        """
        if self.replica.averaging.group != WORLD and self.comm.topology.ranks > 1:
            raise NotImplementedError(
                f"{type(self).__name__} does not average gradients over the world: it must define "
                "`stop_agreed`"
            )
        return stop_requested

    def is_sync_point(self, progress: Progress) -> bool:
        """Whether all ranks have just waited for each other, so that they may evaluate, save or stop here.

        The result must be equal on all ranks.
        """
        return True

    # ---------------------------------------------------------------- the model

    def wait_pending(self) -> None:
        """Complete transfers in flight without applying them. Called before `averaged_model` and saving."""

    @contextmanager
    def averaged_model(self) -> Iterator[None]:
        """Inside, the replica holds the model that is evaluated or delivered; afterwards all is as before.

        Default: the replica's own parameters, with floating-point buffers averaged over all ranks (the mean
            of BatchNorm variances, not the pooled variance; integer counters stay as they are).
        """
        with self.replica.averaged_buffers(self.comm):
            yield

    def snapshot(self, progress: Progress) -> Callable[[], Tensor]:
        """Put this rank's part of the present model aside: without waiting, and without a collective.

        Called after `after_step`, on all ranks at the same step or where all have just met. The result is
        called later, on all ranks together, and returns the model [m + F]: m parameters, then F elements of
        floating-point buffers. Default: the mean over all ranks.
        """
        copy = self.replica.model_vector()

        def assemble() -> Tensor:
            total = copy.clone()
            self.comm.all_reduce(total, WORLD, channel="parameters").wait()
            return total / self.comm.topology.ranks

        return assemble

    def finalize(self) -> None:
        """The run ends: complete what is in flight and make all replicas equal."""

    def state_dict(self) -> dict[str, Any]:
        """What this rank needs for a resume beside the replica. Default: the attributes in `remembers`."""
        return {name: getattr(self, name) for name in self.remembers}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore `state_dict`, after `setup`. Its tensors are on the CPU, whatever the replica's device.

        Default: the attributes in `remembers`; a tensor goes where the attribute's present one is, else to
        the replica's device.
        """
        for name in self.remembers:
            value, present = state[name], getattr(self, name)
            if isinstance(value, Tensor):
                value = value.to(present.device) if isinstance(present, Tensor) else self.replica.here(value)
            setattr(self, name, value)

    # ---------------------------------------------------------------- records

    def record(self, progress: Progress) -> dict[str, Any]:
        """What this rank did in the epoch that has just ended, JSON-ready; called once per epoch."""
        return {}

    def summary(self) -> dict[str, Any]:
        """What this rank did in the whole run, JSON-ready."""
        return {}

    def labels(self, target_step: int | None) -> list[str]:
        """Remarks without which a number of this run would mislead.

        `target_step`: steps until the target was reached; None: it was not.
        """
        return []


def require_uniform(plan: Plan, what: str, others: str = "") -> None:
    """Refuse nodes with different numbers of ranks, which `what` cannot divide; `others` says what can.

    Raises ConfigError.
    """
    if not plan.topology.uniform:
        given = list(plan.topology.ranks_of_nodes)
        raise ConfigError(f"{what} needs the same number of ranks on every node, got {given}{others}")


class AsynchronousStrategy(Strategy):
    """Each rank draws its own samples from all data and steps at its own pace; global samples end the run.

    With other strategies all ranks take equal steps on the pieces of common global batches. Here `step` and
    `batch` of `Progress` count this rank's steps, and `is_sync_point` is true where all ranks have applied
    the same round.
    """

    @abstractmethod
    def samples(self, progress: Progress) -> int:
        """Global samples that the model has seen at this sync point, exactly; equal on all ranks."""

    @abstractmethod
    def global_samples(self, progress: Progress) -> int:
        """Global samples before the present step, as far as this rank knows: for the learning rate."""

    def ended(self, progress: Progress) -> bool:
        """Whether the run ends at this sync point, by `progress.samples`. Equal on all ranks."""
        return progress.samples >= progress.budget

    def reserve(self, copies: int) -> None:
        """Training with deferred evaluation begins: at most so many snapshots are kept at once."""
