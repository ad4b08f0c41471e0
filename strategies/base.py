"""The contract of a data-parallel strategy: what is communicated, and when. Nothing else.

The train loop owns forward, backward, optimizer, schedule, clipping, precision and data, and names no
strategy:

    strategy.before_batch(progress)
    loss = replica.compute_gradients(batch)
    strategy.before_step(progress)
    optimizer step
    strategy.after_step(progress)
    if strategy.is_sync_point(progress): evaluate, save, stop where it is time to

A strategy of your own is one file with a subclass and one YAML whose `_target_` names it. Where each rank
trains at its own pace, it is a subclass of `AsynchronousStrategy`.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from .communicator import Communicator
from .progress import Plan, Progress
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
    """What is communicated when. All methods but `setup` have defaults that do nothing or the obvious.

    `Config` is the frozen dataclass of the strategy's keys. `piece_shift` moves the pieces of each global
    batch by so many ranks. `reads_epoch_loss` asks the loop for `Progress.epoch_loss` in `after_epoch`, at
    the price of one all-reduce of two numbers an epoch. `copies_are_whole`: a `snapshot` needs no more
    averaging to be the model. `never_syncs`: ranks never all wait for each other in training, so standing
    still for an evaluation or a checkpoint costs training time wherever it is: models are judged from copies.
    `caveats` are sentences that belong beside every number of this strategy.
    `may_differ` names what it may change against a baseline and be fair: keys of the configuration, or
    of the fairness table (runner/report/claims/recorded.py), or their beginnings, written out as a plain
    tuple.
    `tuned` names at most three keys of `Config` that `daso-bench tune` searches besides what it searches for
    all strategies, each with the values to try; what `check` refuses of them is a failed trial.
    """

    Config: ClassVar[type]
    piece_shift: ClassVar[int] = 0
    reads_epoch_loss: ClassVar[bool] = False
    copies_are_whole: bool = False
    never_syncs: bool = False
    caveats: ClassVar[tuple[str, ...]] = ()
    may_differ: ClassVar[tuple[str, ...]] = ("strategy",)
    tuned: ClassVar[tuple[tuple[str, tuple[Any, ...]], ...]] = ()

    replica: Replica
    comm: Communicator

    def __init__(self, config: Any) -> None:
        self.config = config

    @classmethod
    def check(cls, config: Any, plan: Plan) -> None:
        """Refuse, in one sentence and before any process starts, what this strategy cannot do.

        Raises:
            ConfigError: what was given, what is allowed, where.
        """

    @classmethod
    def needs_numbers(cls, config: Any) -> str | None:
        """The `key=value` by which what is sent depends on numbers that were trained; None: sizes tell it."""
        return None

    @abstractmethod
    def setup(self, replica: Replica, comm: Communicator, progress: Progress) -> None:
        """Remember replica and communicator, ask for gradient averaging, bind memory, allocate.

        Replicas are equal already; the optimizer does not exist yet.
        """

    def shares(self, progress: Progress) -> Shares | None:
        """How the coming epoch's global batches are split over ranks; None: equally.

        Called before each epoch, and when a run is resumed within one (`progress.batch` > 0): then it must
        answer as before.
        """
        return None

    def before_batch(self, progress: Progress) -> None:
        """A step begins. Between here and the end of `after_step` nobody evaluates, saves or stops."""

    def before_step(self, progress: Progress) -> None:
        """Gradients are there: make them the ones to apply."""

    def after_step(self, progress: Progress) -> None:
        """Parameters have moved: mix them."""

    def after_epoch(self, progress: Progress) -> None:
        """An epoch has ended, its last `after_step` done."""

    def stop_agreed(self, progress: Progress, stop_requested: bool) -> bool:
        """Whether *all* ranks know, as of this step, that some rank asks to stop or is not finite.

        `stop_requested` tells whether a rank of my gradient group did. The answer must be equal on all ranks
        at every step and may only use what ranks exchange anyway; once it is true the loop asks everybody,
        over the control channel, what it is. Default: right for strategies that average gradients over the
        world in each step, and refused for others.
        """
        if self.replica.averaging.group != WORLD and self.comm.topology.ranks > 1:
            raise NotImplementedError(
                f"{type(self).__name__} does not average gradients over the world: it must define "
                "`stop_agreed`"
            )
        return stop_requested

    def is_sync_point(self, progress: Progress) -> bool:
        """Whether the step just taken brought all ranks together, so that they may evaluate, save or stop.

        The answer must be equal on all ranks. Default: every step does. Periodic strategies answer yes where
        they synchronise.
        """
        return True

    def deferred(self, progress: Progress, every: int) -> bool:
        """Whether stopping all ranks for an evaluation every `every` samples would disturb this strategy.

        If so, and unless the user says otherwise, copies are set aside and evaluated later.
        """
        return self.never_syncs

    def snapshot(self, progress: Progress) -> Tensor | None:
        """This rank's part of the model to be evaluated later [m + F]: no waiting, no collective.

        F are the elements of floating-point buffers, behind the parameters. None: another rank keeps it.
        Called after `after_step`, on all ranks at the same step, or where all have just met.
        """
        return torch.cat([self.replica.flat(), self.replica.buffers.pack().to(self.replica.parameters.dtype)])

    def assemble(self, copy: Tensor | None) -> Tensor:
        """The model [m + F] from all ranks' snapshots of one time, on every rank; all ranks call it."""
        assert copy is not None
        whole = copy.clone()
        self.comm.all_reduce(whole, WORLD, channel="parameters").wait()
        return whole / self.comm.topology.ranks

    def wait_pending(self) -> None:
        """Complete what is in flight without applying it. Called before `averaged_model` and `state_dict`."""

    @contextmanager
    def averaged_model(self) -> Iterator[None]:
        """Inside, the replica's model is the one a user would be given; afterwards everything is as before.

        Default: the own parameters with floating-point buffers averaged over all ranks (a mean of BatchNorm
            variances, not the pooled variance; integer counters are left alone).
        """
        saved = self.replica.buffers.pack()
        self.average_buffers()
        try:
            yield
        finally:
            self.replica.buffers.unpack(saved)

    def finalize(self) -> None:
        """The run ends here: complete what is in flight and make all replicas equal."""

    def state_dict(self) -> dict[str, Any]:
        """What a resume needs of this rank beyond the replica: tensors, numbers, strings, lists, dicts."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore `state_dict` after `setup`. Its tensors are on the CPU, wherever the replica is."""

    def record(self, progress: Progress) -> dict[str, Any]:
        """What this rank did in the epoch that just ended, JSON-ready; called once per epoch."""
        return {}

    def summary(self) -> dict[str, Any]:
        """What this rank did in the whole run, JSON-ready."""
        return {}

    def labels(self, target_step: int | None) -> list[str]:
        """Remarks without which a number would mislead (`target_step`: steps until the target)."""
        return []

    def average_buffers(self) -> None:
        """Replace floating-point buffers by their mean over all ranks (parameters channel, blocking)."""
        if self.replica.buffers.numel and self.comm.topology.ranks > 1:
            flat: Tensor = self.replica.buffers.pack()
            self.comm.all_reduce(flat, WORLD).wait()
            self.replica.buffers.unpack(flat / self.comm.topology.ranks)
