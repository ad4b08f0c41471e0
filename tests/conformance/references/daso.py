"""DASO's reference: events by (epoch, batch, B, W), the plateau rule, the merge."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from identities import keeps_still
from numpy_models import Array
from numpy_optimizers import ADAMW
from proof import EPOCHS, EVERY, NODES, Case, Identity, Mixing, usual
from world import World, narrow_sum


@dataclass
class Schedule:
    """B, W and the plateau detector, moved by `observe`."""

    sync_every: int
    wait_batches: int
    largest: int
    keys: dict[str, Any]
    best: float = math.nan
    bad: int = 0

    def observe(self, loss: float) -> None:
        """One epoch's loss; on a plateau B and W change."""
        threshold = self.best - self.keys["plateau_threshold"] * abs(self.best)
        first = math.isnan(self.best) and math.isfinite(loss)
        if first or loss < threshold:
            self.best, self.bad = loss, 0
            return
        self.bad += 1
        if self.bad <= self.keys["plateau_patience"]:
            return
        self.bad = 0
        if self.sync_every > 1:
            self.sync_every = max(1, self.sync_every // self.keys["reduction_factor"])
            if self.wait_batches > 0:
                self.wait_batches = min(max(1, self.wait_batches - 1), self.sync_every)
        else:
            self.sync_every = self.largest
            if self.wait_batches > 0:
                self.wait_batches = max(1, self.largest // self.keys["reset_wait_divisor"])


DEFAULTS = {
    "sync_every": 4,
    "max_sync_every": None,
    "wait_batches": 1,
    "reset_wait_divisor": 4,
    "warmup_epochs": "auto",
    "cooldown_epochs": "auto",
    "plateau_threshold": 0.05,
    "plateau_patience": 2,
    "reduction_factor": 2,
    "staleness_weight": 2.0,
    "blocking": "parameters",
    "transport_dtype": None,
    "buffers": "average",
}


def daso(world: World, **given: Any) -> Iterator[None]:
    """Node-mean gradients in every batch; then, in this order: average, or start and merge."""
    keys = DEFAULTS | given
    epochs, batches = world.setting.epochs, world.setting.steps_per_epoch
    auto = max(1, round(4 / 90 * epochs))
    warmup = auto if keys["warmup_epochs"] == "auto" else keys["warmup_epochs"]
    cooldown = auto if keys["cooldown_epochs"] == "auto" else keys["cooldown_epochs"]
    schedule = Schedule(
        keys["sync_every"], keys["wait_batches"], keys["max_sync_every"] or keys["sync_every"], keys
    )
    mixer = Mixer(world, keys)
    lost, seen = 0.0, 0.0  # Σ n·loss and Σ n of the epoch

    def cycling(epoch: int) -> bool:
        return warmup <= epoch < epochs - cooldown

    for k in world.steps():
        epoch, batch = divmod(k - 1, batches)
        blocking = not cycling(epoch)
        gradients = world.in_nodes(world.gradients())
        if blocking and keys["blocking"] == "gradients":
            gradients = mixer.over_nodes(gradients)
        world.update(gradients)
        if len(world.nodes) > 1:
            mixer.after_step(batch, schedule, blocking, world.last_batch)
        lost, seen = lost + float(world.losses @ world.sizes), seen + float(world.sizes.sum())
        if world.last_batch:
            if epoch + 1 < epochs and cycling(epoch + 1):
                told = world.setting.losses
                schedule.observe(told(epoch) if told else lost / seen)
            lost = seen = 0.0
        yield
    # The last batch of an epoch averages, so nothing is in flight and all are equal.


class Mixer:
    """What DASO does to θ [R, m] after optimizer steps. `pending`: (start, Σ of the snapshots)."""

    def __init__(self, world: World, keys: dict[str, Any]) -> None:
        self.world, self.keys = world, keys
        self.pending: list[tuple[int, Array]] = []
        self.reference = world.theta[0].copy()

    def after_step(self, batch: int, schedule: Schedule, blocking: bool, last: bool) -> None:
        """Rules 2 to 5, in their order."""
        period, wait = schedule.sync_every, schedule.wait_batches
        if last or (blocking and self.keys["blocking"] == "parameters"):
            self.average(narrow=blocking)
        elif not blocking and wait == 0 and batch % period == 0:
            self.average(narrow=False)
        elif not blocking and wait > 0:
            if batch % period == 0 and batch + wait < self.world.setting.steps_per_epoch - 1:
                self.pending.append((batch, self.nodes_of(self.world.theta).sum(0)))
            if self.pending and self.pending[0][0] == batch - wait:
                self.merge(self.pending.pop(0)[1], wait)
        if last:
            self.world.mix_buffers(self.keys["buffers"])

    def merge(self, total: Array, waited: int) -> None:
        """x_j = (λ·n·y_j + Σ s_k)/(λ·n + N)."""
        theta, weight = self.world.theta, self.keys["staleness_weight"] * waited
        theta[:] = (weight * theta + total) / (weight + len(self.world.nodes))

    def average(self, narrow: bool) -> None:
        """θ = mean over nodes; with 16-bit transport in blocking epochs the mean of narrowed differences."""
        rows = self.nodes_of(self.world.theta)
        dtype = self.keys["transport_dtype"]
        if narrow and dtype is not None:
            total = narrow_sum(rows - self.reference, dtype)
            self.world.theta[:] = self.reference + total / len(rows)
        else:
            self.world.theta[:] = rows.mean(0)
        self.reference = self.world.theta[0].copy()

    def over_nodes(self, rows: Array) -> Array:
        """[R, m]: the plain mean of the nodes' rows, for everybody."""
        return np.tile(self.nodes_of(rows).mean(0), (self.world.ranks, 1))

    def nodes_of(self, rows: Array) -> Array:
        """[N, m]: one row of each node; its ranks' rows are equal."""
        return rows[[ranks[0] for ranks in self.world.nodes]]


CYCLING = {"warmup_epochs": 0, "cooldown_epochs": 0}
BLOCKING = {"warmup_epochs": EPOCHS, "cooldown_epochs": 0, "allow_no_cycling": True}

CASES = (
    *usual({}, NODES, epochs=5),
    Case(keys={"wait_batches": 2, "sync_every": 3, "warmup_epochs": 2}, ranks=((2, 2),), epochs=5),
    Case(keys={"wait_batches": 2, "sync_every": 2, **CYCLING}, ranks=((2, 2), (1, 1, 1)), epochs=5),
    Case(keys={"wait_batches": 1, "sync_every": 1}, ranks=((2, 2),), epochs=5),
    Case(keys={"wait_batches": 0, "sync_every": 3}, ranks=((2, 2),), epochs=5),
    Case(keys={"staleness_weight": 0.5, "wait_batches": 3}, ranks=((1, 1),), epochs=5),
    Case(keys={"transport_dtype": "bfloat16"}, ranks=((2, 2),), epochs=3),
    Case(keys={"transport_dtype": "float16", "warmup_epochs": 2}, ranks=((1, 1, 1),), epochs=4),
    Case(keys={"blocking": "gradients", "warmup_epochs": 2}, ranks=((2, 2),), recipe=ADAMW, epochs=5),
    Case(keys={"buffers": "broadcast"}, ranks=((2, 2),), epochs=3),
    Case(keys={"buffers": "none"}, ranks=((2, 2),), epochs=3),
    Case(
        keys={**CYCLING, "sync_every": 6, "wait_batches": 3, "plateau_patience": 0},
        ranks=((2, 2),),
        losses=lambda epoch: 1.0,
        epochs=5,
    ),
    Case(
        keys={**CYCLING, "sync_every": 2, "plateau_patience": 0, "max_sync_every": 8},
        ranks=((1, 1),),
        losses=lambda epoch: 1.0,
        epochs=5,
    ),
    Case(keys={**CYCLING, "plateau_patience": 0, "plateau_threshold": 0.5}, ranks=((2, 2),), epochs=5),
    Case(
        keys={**CYCLING, "plateau_patience": 1},
        ranks=((1, 1),),
        losses=lambda epoch: (1.0, 0.97, 0.9, 0.9, 0.9)[epoch],
        epochs=5,
    ),
    # Between the best loss and the one of a plateau is no improvement.
    Case(
        keys={**CYCLING, "sync_every": 8, "plateau_patience": 0},
        ranks=((1, 1),),
        losses=lambda epoch: (1.0, 1.2, 1.1, 1.1, 1.1)[epoch],
        epochs=5,
    ),
    # Long enough for `auto` to be more than one epoch, and for B to be reset.
    Case(ranks=((1, 1),), losses=lambda epoch: 1.0, epochs=36, steps_per_epoch=4),
)
IDENTITIES = (
    Identity(
        keys=CYCLING,
        ranks=((1,), (3,)),
        recipes=EVERY,
        samples="uneven",
        bitwise=True,
    ),
    Identity(keys=BLOCKING, ranks=NODES, breaks=(ADAMW,)),
    Identity(keys={**BLOCKING, "blocking": "gradients"}, ranks=NODES, recipes=EVERY),
    Identity(
        keys={**CYCLING, "sync_every": 1, "wait_batches": 0},
        ranks=NODES,
        breaks=(ADAMW,),
    ),
)
MIXING = (Mixing(keeps_still, {"warmup_epochs": 1, "cooldown_epochs": 0}, ((2, 2),)),)
VARIANTS = (
    {"sync_every": 2, "wait_batches": 2, "buffers": "none"},
    {"wait_batches": 0, "sync_every": 3},
    {"blocking": "gradients"},
    {"transport_dtype": "bfloat16", "buffers": "broadcast"},
)
