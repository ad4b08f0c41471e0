"""Training state of one rank: all that a checkpoint saves, and how it is restored."""

import logging
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ...strategies.base import Strategy
from ...strategies.communicator import Communicator
from ...strategies.errors import ConfigError
from ...strategies.progress import Progress
from ...strategies.replica import Replica
from ...strategies.topology import WORLD
from ..communication.traffic import Traffic
from ..config.schedules import Watch
from . import checkpoint
from .batch_order import BatchOrder
from .callbacks import Callback
from .clock import PARTS, Clock
from .eval_schedule import EvalSchedule

log = logging.getLogger(__name__)

FORMAT = 1
POSITION = ("step", "epoch", "batch", "samples")


@dataclass
class Account:
    """Sums over the run, equal on all ranks: training time, its parts, the evaluations so far.

    `parts_ns` are means over ranks; `train_evaluated_ns`, `samples_evaluated` are as of the last evaluation.
    """

    train_ns: int = 0
    wall_before_ns: int = 0
    process_before_ns: int = 0
    parts_ns: dict[str, int] = field(default_factory=lambda: dict.fromkeys(PARTS, 0))
    evaluations: list[dict[str, Any]] = field(default_factory=list)
    samples_evaluated: int = 0
    train_evaluated_ns: int = 0
    intervals: int = 0
    checkpoints: int = 0
    target_step: int | None = None


class LossSums:
    """This rank's sums of n_r · loss and of samples: since the last evaluation, of the epoch, of the run.

    A loss that is not finite stays in `of_run`. The sums are one tensor, so that a step adds to all three
    with one operation.
    """

    def __init__(self, device: torch.device) -> None:
        self.sums = torch.zeros(3, dtype=torch.float64, device=device)
        self.since_evaluation, self.of_epoch, self.of_run = self.sums.unbind()
        self.samples_since_evaluation = self.samples_of_epoch = self.samples_of_run = 0

    def add(self, loss: Tensor, samples: int) -> None:
        """Add a step's mean loss [] over `samples` samples."""
        self.sums.add_(loss, alpha=samples)
        self.samples_since_evaluation += samples
        self.samples_of_epoch += samples
        self.samples_of_run += samples

    def evaluated(self) -> None:
        self.since_evaluation.zero_()
        self.samples_since_evaluation = 0

    def epoch_ended(self) -> None:
        self.of_epoch.zero_()
        self.samples_of_epoch = 0

    def state_dict(self) -> dict[str, Any]:
        samples = [self.samples_since_evaluation, self.samples_of_epoch, self.samples_of_run]
        return {"sums": self.sums, "samples": samples}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.sums.copy_(state["sums"])
        self.samples_since_evaluation, self.samples_of_epoch, self.samples_of_run = state["samples"]


@dataclass(kw_only=True)
class TrainState:
    """All that determines the next step of one rank, bit for bit, and the sums of its records.

    `run_id`: whose state it is, "" without checkpoints. `learning_rate`: of the last step. `watch`: state of
    a schedule that waits for a plateau of the loss. `begun_ns`: when the training clock of this attempt
    started. Optimizer, scaler and random generators
    belong to the replica.
    """

    run_id: str
    ranks_of_nodes: Sequence[int]
    device: torch.device
    progress: Progress
    batch_order: BatchOrder
    replica: Replica
    strategy: Strategy
    callbacks: Sequence[Callback]
    traffic: Traffic
    clock: Clock
    losses: LossSums
    schedule: EvalSchedule
    account: Account = field(default_factory=Account)
    learning_rate: float = 0.0
    watch: Watch | None = None
    begun_ns: int = 0

    def state_dict(self) -> dict[str, Any]:
        """For a checkpoint: tensors, numbers, strings and containers only."""
        replica, clock, account = self.replica, self.clock, self.account
        train_ns = clock.segments["train"]
        return {
            "format": FORMAT,
            "run_id": self.run_id,
            "ranks_of_nodes": list(self.ranks_of_nodes),
            "device": self.device.type,
            "progress": {name: getattr(self.progress, name) for name in POSITION},
            "batch_order": self.batch_order.state_dict(),
            "model": replica.model.state_dict(),
            "optimizer": replica.optimizer.state_dict(),
            "scaler": None if replica.scaler is None else replica.scaler.state_dict(),
            "rng": replica.rng_state(),
            "strategy": self.strategy.state_dict(),
            "callbacks": [callback.state_dict(train_ns) for callback in self.callbacks],
            "traffic": self.traffic.state_dict(),
            "losses": self.losses.state_dict(),
            "schedule": self.schedule.state_dict(),
            "account": asdict(account),
            "learning_rate": self.learning_rate,
            "watch": None if self.watch is None else asdict(self.watch),
            "wall_ns": account.wall_before_ns + clock.total() - self.begun_ns,
            "process_ns": account.process_before_ns + clock.total(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore `state_dict` in a new state."""
        replica, account = self.replica, self.account
        for name, value in state["progress"].items():
            setattr(self.progress, name, value)
        self.batch_order.load_state_dict(state["batch_order"])
        replica.model.load_state_dict(state["model"])
        replica.optimizer.load_state_dict(state["optimizer"])
        if replica.scaler is not None:
            replica.scaler.load_state_dict(state["scaler"])
        self.strategy.load_state_dict(state["strategy"])
        replica.load_rng_state(state["rng"])
        for callback, part in zip(self.callbacks, state["callbacks"], strict=True):
            callback.load_state_dict(part)
        self.traffic.load_state_dict(state["traffic"])
        self.losses.load_state_dict(state["losses"])
        self.schedule.load_state_dict(state["schedule"], self.progress.samples)
        for entry in fields(account):
            setattr(account, entry.name, state["account"][entry.name])
        account.wall_before_ns, account.process_before_ns = state["wall_ns"], state["process_ns"]
        self.learning_rate = state["learning_rate"]
        self.watch = None if state["watch"] is None else Watch(**state["watch"])

    def restore(self, checkpoints: Path | None, comm: Communicator) -> str | None:
        """Load the newest whole checkpoint that all ranks agree on; returns its name, None if there is none.

        Rank 0 chooses for all: ranks must not resume from different checkpoints where only one finds damage.
        Raises ConfigError: it is another run's, or was written by ranks with other nodes, or on another kind
        of device.
        """
        if checkpoints is None:
            return None
        step = torch.full((1,), -1, dtype=torch.int64)
        if comm.rank == 0:
            newest, damage = checkpoint.newest_valid(checkpoints)
            for sentence in damage:
                log.warning("checkpoint not used: %s", sentence)
            step[0] = int(newest.name.removeprefix("step_")) if newest else -1
        comm.broadcast(step, 0, WORLD, channel="control").wait()
        if step.item() < 0:
            return None
        path = checkpoint.folder_of(checkpoints, int(step.item()))
        state = checkpoint.read(path / checkpoint.rank_file(comm.rank))
        self._check_shape(path, state)
        self.load_state_dict(state)
        return path.name

    def _check_shape(self, path: Path, state: dict[str, Any]) -> None:
        """Raise ConfigError for another run or other ranks, or a device with other arithmetic."""
        shape, device = list(self.ranks_of_nodes), self.device.type
        if state["format"] != FORMAT or state["ranks_of_nodes"] != shape:
            raise ConfigError(
                f"{path}: was written by format {state['format']} on ranks {state['ranks_of_nodes']}, "
                f"this run is format {FORMAT} on ranks {shape}"
            )
        if state["run_id"] != self.run_id:
            raise ConfigError(
                f"{path}: is a checkpoint of run {state['run_id']}, this run is {self.run_id}; remove it"
            )
        saved = state["device"]
        if saved != device:
            raise ConfigError(
                f"{path.name}: was saved on {saved}, and this rank is on {device}, which computes otherwise; "
                f"resume where ranks take {saved} (cluster.device.kind, in virtual time launcher.device), or "
                "begin anew"
            )
