"""Callbacks of one rank's training: what starts and pauses with it, and adds to summary and checkpoints."""

from typing import Any

import torch

from ...strategies.communicator import Communicator
from ...strategies.replica import Replica
from ..machine.run_queue import RunQueue
from . import gather
from .batch_order import BatchOrder


class Callback:
    """Hooks of training that do nothing.

    All ranks have the same callbacks and call each hook together, but for `on_train_start` and `on_pause`,
    which send nothing. `train_ns`: nanoseconds that this rank has trained in this attempt.
    """

    def on_prepared(self, replica: Replica, batch_order: BatchOrder) -> None:
        """The rank is complete and training has not begun; what is done here counts as startup."""

    def on_train_start(self) -> None:
        """Training begins, or goes on after a pause (an evaluation, a checkpoint)."""

    def on_pause(self) -> None:
        """Training pauses or has ended."""

    def on_end(self, train_ns: int, *, finished: bool) -> dict[str, Any]:
        """The fields that it adds to the run's summary, equal on all ranks."""
        return {}

    def state_dict(self, train_ns: int) -> dict[str, Any]:
        """What a resumed run has to know of this attempt and of those before it."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from `state_dict`."""


class RunQueueTime(Callback):
    """Records how long the worst rank stood in the kernel's run queue while it trained."""

    def __init__(self, queue: RunQueue, comm: Communicator) -> None:
        self._queue, self._comm = queue, comm

    def on_train_start(self) -> None:
        self._queue.training(True)

    def on_pause(self) -> None:
        self._queue.training(False)

    def on_end(self, train_ns: int, *, finished: bool) -> dict[str, Any]:
        """`run_queue_share`: of the worst rank; None where a rank's system does not tell."""
        share = self._queue.share(train_ns)
        shares = gather.vectors(
            self._comm, torch.tensor([-1.0 if share is None else share], dtype=torch.float64)
        )
        return {"run_queue_share": None if float(shares.min()) < 0 else float(shares.max())}

    def state_dict(self, train_ns: int) -> dict[str, Any]:
        return self._queue.state_dict(train_ns)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._queue.load_state_dict(state)
