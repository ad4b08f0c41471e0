"""Callbacks of one rank's training, called when it starts, pauses, ends, saves and resumes."""

from typing import Any

import torch

from ...strategies.replica import Replica
from ..communication.traffic import CountedCommunicator
from ..machine.cores import RunQueue
from .batch_order import BatchOrder


class Callback:
    """Base class: hooks that do nothing.

    All ranks have the same callbacks and call each hook at the same place, so a hook may communicate; only
    `on_train_start` and `on_pause` must not. `train_ns`: nanoseconds that this rank has trained in this
    attempt.
    """

    def on_prepared(self, replica: Replica, batch_order: BatchOrder) -> None:
        """Everything is built and training has not begun; time spent here counts as startup."""

    def on_train_start(self) -> None:
        """Training begins, or continues after a pause (an evaluation, a checkpoint)."""

    def on_pause(self) -> None:
        """Training pauses or has ended."""

    def on_end(self, train_ns: int, *, finished: bool) -> dict[str, Any]:
        """Fields for the run's summary, equal on all ranks."""
        return {}

    def state_dict(self, train_ns: int) -> dict[str, Any]:
        """What a checkpoint keeps of this attempt and of those before it."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore `state_dict`."""


class RunQueueTime(Callback):
    """Records the share of training time that ranks waited for a core in the kernel's run queue."""

    def __init__(self, queue: RunQueue, comm: CountedCommunicator) -> None:
        self._queue, self._comm = queue, comm

    def on_train_start(self) -> None:
        self._queue.training(True)

    def on_pause(self) -> None:
        self._queue.training(False)

    def on_end(self, train_ns: int, *, finished: bool) -> dict[str, Any]:
        """`run_queue_share`: the largest of all ranks; None where a system does not report it."""
        share = self._queue.share(train_ns)
        shares = self._comm.gather(torch.tensor([-1.0 if share is None else share], dtype=torch.float64))
        return {"run_queue_share": None if float(shares.min()) < 0 else float(shares.max())}

    def state_dict(self, train_ns: int) -> dict[str, Any]:
        return self._queue.state_dict(train_ns)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._queue.load_state_dict(state)
