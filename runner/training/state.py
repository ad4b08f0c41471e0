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
    from .context import Session
    from .time_accounting import Account

log = logging.getLogger(__name__)

FORMAT = 1
POSITION = ("step", "epoch", "batch", "samples")


def snapshot(session: "Session", account: "Account", begun_ns: int) -> dict[str, Any]:
    """This rank's state: tensors, numbers, strings and containers only."""
    progress, clock, apparatus = session.progress, session.clock, session.world.apparatus
    queue = session.world.queue
    return {
        "format": FORMAT,
        "ranks_of_nodes": list(session.comm.topology.ranks_of_nodes),
        "device": session.world.device.type,
        "progress": {name: getattr(progress, name) for name in POSITION},
        "feed": session.feed.state_dict(),
        "loader": session.loader.state_dict(),
        "judged_samples": session.judged_samples,
        "owed": session.owed,
        "rate": session.rate,
        "copies": [session.copies.taken, session.copies.dropped],
        "model": session.replica.model.state_dict(),
        "optimizer": session.replica.optimizer.state_dict(),
        **({} if session.replica.scaler is None else {"scaler": session.replica.scaler.state_dict()}),
        "strategy": session.strategy.state_dict(),
        "schedule": None if session.watch is None else asdict(session.watch),
        "rng": session.replica.rng_state(),
        "losses": session.loss_sums,
        "loss_samples": [session.loss_samples, session.epoch_samples, session.trained_samples],
        "saves_between": session.saves_between,
        "traffic": session.comm.traffic.state_dict(),
        "account": asdict(account),
        "apparatus": None if apparatus is None else apparatus.state_dict(clock.segments["train"]),
        "queue": None if queue is None else queue.state_dict(clock.segments["train"]),
        "wall_ns": account.wall_before_ns + clock.total() - begun_ns,
        "process_ns": account.process_before_ns + clock.total(),
    }


def restore(session: "Session", account: "Account") -> str | None:
    """Load the newest whole checkpoint that all ranks agree on; returns its name, None if there is none.

    Rank 0 chooses and tells: a file that only one rank finds damaged must not part them.
    """
    if session.checkpoints is None:
        return None
    chosen = torch.full((1,), -1, dtype=torch.int64)
    if session.comm.rank == 0:
        path, damage = checkpoint.newest_valid(session.checkpoints)
        for sentence in damage:
            log.warning("checkpoint not used: %s", sentence)
        chosen[0] = int(path.name.removeprefix("step_")) if path else -1
    session.comm.broadcast(chosen, 0, WORLD, channel="control").wait()
    if chosen.item() < 0:
        return None
    path = session.checkpoints / f"step_{int(chosen.item()):010d}"
    state = checkpoint.read(path / checkpoint.rank_file(session.comm.rank))
    shape = list(session.comm.topology.ranks_of_nodes)
    if state["format"] != FORMAT or state["ranks_of_nodes"] != shape:
        raise ConfigError(
            f"{path}: was written by format {state['format']} on ranks {state['ranks_of_nodes']}, "
            f"this run is format {FORMAT} on ranks {shape}"
        )
    _check_device(path.name, session.world.device.type, state)
    _apply(session, account, state)
    return path.name


def _check_device(name: str, here: str, state: dict[str, Any]) -> None:
    """Refuse to go on with other arithmetic and other random numbers than those that began the run."""
    saved = state["device"]
    if saved != here:
        raise ConfigError(
            f"{name}: was saved on {saved}, and this rank is on {here}, whose sums round otherwise and whose "
            f"random numbers are others; resume where ranks take {saved} (cluster.device.kind), or begin anew"
        )


def _apply(session: "Session", account: "Account", state: dict[str, Any]) -> None:
    for name, value in state["progress"].items():
        setattr(session.progress, name, value)
    session.feed.load_state_dict(state["feed"])
    session.loader.load_state_dict(state["loader"])
    session.judged_samples, session.owed = state["judged_samples"], state["owed"]
    session.rate = state["rate"]
    session.copies.taken, session.copies.dropped = state["copies"]
    session.replica.model.load_state_dict(state["model"])
    session.replica.optimizer.load_state_dict(state["optimizer"])
    if session.replica.scaler is not None:
        session.replica.scaler.load_state_dict(state["scaler"])
    session.strategy.load_state_dict(state["strategy"])
    session.watch = None if state["schedule"] is None else Watch(**state["schedule"])
    session.replica.load_rng_state(state["rng"])
    session.loss_sums.copy_(state["losses"])
    session.loss_samples, session.epoch_samples, session.trained_samples = state["loss_samples"]
    session.saved_samples, session.saves_between = session.progress.samples, state["saves_between"]
    session.comm.traffic.load_state_dict(state["traffic"])
    for entry in fields(account):
        setattr(account, entry.name, state["account"][entry.name])
    if session.world.apparatus is not None and state["apparatus"] is not None:
        session.world.apparatus.load_state_dict(state["apparatus"])
    if session.world.queue is not None and state["queue"] is not None:
        session.world.queue.load_state_dict(state["queue"])
    account.wall_before_ns, account.process_before_ns = state["wall_ns"], state["process_ns"]
