"""What a checkpoint holds of a rank: everything that decides the next step, bit for bit."""

import logging
from dataclasses import asdict, fields
from typing import TYPE_CHECKING, Any

import torch

from ...strategies.errors import ConfigError
from ...strategies.topology import WORLD
from ..config.schedules import Watch
from . import checkpoint

if TYPE_CHECKING:
    from .context import TrainContext
    from .time_accounting import Account

log = logging.getLogger(__name__)

FORMAT = 1
POSITION = ("step", "epoch", "batch", "samples")


def snapshot(context: "TrainContext", account: "Account", begun_ns: int) -> dict[str, Any]:
    """This rank's state: tensors, numbers, strings and containers only."""
    progress, clock, apparatus = context.progress, context.clock, context.backend.apparatus
    queue = context.backend.queue
    return {
        "format": FORMAT,
        "ranks_of_nodes": list(context.comm.topology.ranks_of_nodes),
        "device": context.backend.device.type,
        "progress": {name: getattr(progress, name) for name in POSITION},
        "feed": context.feed.state_dict(),
        "loader": context.loader.state_dict(),
        "judged_samples": context.judged_samples,
        "owed": context.owed,
        "rate": context.rate,
        "copies": [context.copies.taken, context.copies.dropped],
        "model": context.replica.model.state_dict(),
        "optimizer": context.replica.optimizer.state_dict(),
        **({} if context.replica.scaler is None else {"scaler": context.replica.scaler.state_dict()}),
        "strategy": context.strategy.state_dict(),
        "schedule": None if context.watch is None else asdict(context.watch),
        "rng": context.replica.rng_state(),
        "losses": context.loss_sums,
        "loss_samples": [context.loss_samples, context.epoch_samples, context.trained_samples],
        "saves_between": context.saves_between,
        "traffic": context.comm.traffic.state_dict(),
        "account": asdict(account),
        "apparatus": None if apparatus is None else apparatus.state_dict(clock.segments["train"]),
        "queue": None if queue is None else queue.state_dict(clock.segments["train"]),
        "wall_ns": account.wall_before_ns + clock.total() - begun_ns,
        "process_ns": account.process_before_ns + clock.total(),
    }


def restore(context: "TrainContext", account: "Account") -> str | None:
    """Load the newest whole checkpoint that all ranks agree on; returns its name, None if there is none.

    Rank 0 chooses and tells: a file that only one rank finds damaged must not part them.
    """
    if context.checkpoints is None:
        return None
    chosen = torch.full((1,), -1, dtype=torch.int64)
    if context.comm.rank == 0:
        path, damage = checkpoint.newest_valid(context.checkpoints)
        for sentence in damage:
            log.warning("checkpoint not used: %s", sentence)
        chosen[0] = int(path.name.removeprefix("step_")) if path else -1
    context.comm.broadcast(chosen, 0, WORLD, channel="control").wait()
    if chosen.item() < 0:
        return None
    path = context.checkpoints / f"step_{int(chosen.item()):010d}"
    state = checkpoint.read(path / checkpoint.rank_file(context.comm.rank))
    shape = list(context.comm.topology.ranks_of_nodes)
    if state["format"] != FORMAT or state["ranks_of_nodes"] != shape:
        raise ConfigError(
            f"{path}: was written by format {state['format']} on ranks {state['ranks_of_nodes']}, "
            f"this run is format {FORMAT} on ranks {shape}"
        )
    _check_device(path.name, context.backend.device.type, state)
    _apply(context, account, state)
    return path.name


def _check_device(name: str, here: str, state: dict[str, Any]) -> None:
    """Refuse to go on with other arithmetic and other random numbers than those that began the run."""
    saved = state["device"]
    if saved != here:
        raise ConfigError(
            f"{name}: was saved on {saved}, and this rank is on {here}, whose sums round otherwise and whose "
            f"random numbers are others; resume where ranks take {saved} (cluster.device.kind), or begin anew"
        )


def _apply(context: "TrainContext", account: "Account", state: dict[str, Any]) -> None:
    for name, value in state["progress"].items():
        setattr(context.progress, name, value)
    context.feed.load_state_dict(state["feed"])
    context.loader.load_state_dict(state["loader"])
    context.judged_samples, context.owed = state["judged_samples"], state["owed"]
    context.rate = state["rate"]
    context.copies.taken, context.copies.dropped = state["copies"]
    context.replica.model.load_state_dict(state["model"])
    context.replica.optimizer.load_state_dict(state["optimizer"])
    if context.replica.scaler is not None:
        context.replica.scaler.load_state_dict(state["scaler"])
    context.strategy.load_state_dict(state["strategy"])
    context.watch = None if state["schedule"] is None else Watch(**state["schedule"])
    context.replica.load_rng_state(state["rng"])
    context.loss_sums.copy_(state["losses"])
    context.loss_samples, context.epoch_samples, context.trained_samples = state["loss_samples"]
    context.saved_samples, context.saves_between = context.progress.samples, state["saves_between"]
    context.comm.traffic.load_state_dict(state["traffic"])
    for entry in fields(account):
        setattr(account, entry.name, state["account"][entry.name])
    if context.backend.apparatus is not None and state["apparatus"] is not None:
        context.backend.apparatus.load_state_dict(state["apparatus"])
    if context.backend.queue is not None and state["queue"] is not None:
        context.backend.queue.load_state_dict(state["queue"])
    account.wall_before_ns, account.process_before_ns = state["wall_ns"], state["process_ns"]
