"""The contract of a data-parallel strategy: what is communicated, and when. Nothing else.

The train loop owns forward, backward, optimizer, schedule, clipping, precision and data, and names no
strategy:

    loss = replica.compute_gradients(batch)
    strategy.before_step(progress)
    optimizer step
    strategy.after_step(progress)

A strategy of your own is one file with a subclass and one YAML whose `_target_` names it.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, ClassVar

from torch import Tensor

from .communicator import Communicator
from .progress import Progress
from .replica import Replica
from .topology import WORLD, Topology


class Strategy(ABC):
    """What is communicated when. All methods but `setup` have defaults that do nothing or the obvious.

    `Config` is the frozen dataclass of the strategy's keys. `piece_shift` moves the pieces of each global
    batch by so many ranks. `reads_epoch_loss` asks the loop for `Progress.epoch_loss` in `after_epoch`, at
    the price of one all-reduce of two numbers an epoch.
    """

    Config: ClassVar[type]
    piece_shift: ClassVar[int] = 0
    reads_epoch_loss: ClassVar[bool] = False

    replica: Replica
    comm: Communicator

    def __init__(self, config: Any) -> None:
        self.config = config

    @classmethod
    def check(cls, config: Any, topology: Topology, epochs: int) -> None:
        """Refuse, in one sentence and before any process starts, what this strategy cannot do.

        Raises:
            ConfigError: what was given, what is allowed, where.
        """

    @abstractmethod
    def setup(self, replica: Replica, comm: Communicator, progress: Progress) -> None:
        """Remember replica and communicator, ask for gradient averaging, allocate.

        Replicas are equal already.
        """

    def before_step(self, progress: Progress) -> None:
        """Gradients are there: make them the ones to apply."""

    def after_step(self, progress: Progress) -> None:
        """Parameters have moved: mix them."""

    def after_epoch(self, progress: Progress) -> None:
        """An epoch has ended, its last `after_step` done."""

    def agree(self, progress: Progress, wished: bool) -> bool:
        """Whether *all* ranks know, as of this step, that some rank wishes to stop or is not finite.

        `wished` tells whether a rank of my gradient group did. The answer must be equal on all ranks at every
        step and may only use what ranks exchange anyway; once it is true the loop asks everybody, over the
        control channel, what it is. Default: right for strategies that average gradients over the world in
        each step.
        """
        return wished

    def settle(self) -> None:
        """Complete what is in flight without applying it. Called before `consensus` and `state_dict`."""

    @contextmanager
    def consensus(self) -> Iterator[None]:
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

    def finish(self) -> None:
        """The run ends here: complete what is in flight and make all replicas equal."""

    def state_dict(self) -> dict[str, Any]:
        """What a resume needs of this rank beyond the replica: tensors, numbers, strings, lists, dicts."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore `state_dict` after `setup`."""

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
