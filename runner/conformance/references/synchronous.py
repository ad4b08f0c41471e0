"""References of strategies that average gradients over all ranks in every step."""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from ..twins import Array
from .world import NoReference, World, mean


def ddp(world: World, *, weighting: str = "samples", hook: str = "none", **keys: Any) -> Iterator[None]:
    """g = Σ n_r·g_r / Σ n_r (`uniform`: the plain mean), one optimizer step."""
    if hook != "none":
        raise NoReference(f"no reference for hook={hook} here")
    for _ in world.steps():
        gradients = world.gradients()
        world.update(weighted(world, gradients, weighting))
        yield


def placebo(world: World, **keys: Any) -> Iterator[None]:
    """ddp, where rank r gets piece (r + 1) mod R of each global batch."""
    for _ in world.steps():
        pieces = world.pieces()
        gradients = world.gradients(pieces[1:] + pieces[:1])
        world.update(weighted(world, gradients, keys.get("weighting", "samples")))
        yield


def hsgd(world: World, **keys: Any) -> Iterator[None]:
    """Two levels, one result: Σ b_i·g_i / Σ b_i over all ranks."""
    for _ in world.steps():
        node_sums, samples = [], []
        gradients = world.gradients()
        for ranks in world.nodes:
            node_sums.append(sum(world.sizes[rank] * gradients[rank] for rank in ranks))
            samples.append(world.sizes[ranks].sum())
        world.update(np.sum(node_sums, axis=0) / sum(samples))
        yield


def heterogeneous(
    world: World,
    *,
    weighting: str = "samples",
    balancing: str = "static",
    shares: Sequence[float] | None = None,
    min_batch: int = 1,
    max_batch: float | Sequence[float] | None = None,
    batch_quantum: int = 1,
    **keys: Any,
) -> Iterator[None]:
    """Global batches cut by shares; g = Σ w_r·g_r with w_r by samples, by real-valued shares, or uniform."""
    total = int(world.full_batch.sum())
    if balancing == "equal":
        real = np.full(world.ranks, 1 / world.ranks)
    elif balancing == "manual" and shares is not None:
        real = np.array(shares, dtype=float) / sum(shares)
    else:
        raise NoReference(f"no reference for balancing={balancing}: its shares come from measured times")
    if max_batch is not None or min_batch != 1:
        raise NoReference("no reference for limits of batches")
    full = integers(real * total, total, batch_quantum)
    for _ in world.steps():
        pieces = world.pieces()
        x, t = (np.concatenate([piece[side] for piece in pieces]) for side in (0, 1))
        sizes = full if len(x) == total else integers(full * len(x) / total, len(x), 1)
        edges = np.cumsum([0, *sizes])
        mine = [slice(a, b) for a, b in zip(edges[:-1], edges[1:], strict=True)]
        gradients = world.gradients([(x[cut], t[cut]) for cut in mine])
        if weighting == "speed":
            world.update(mean(gradients, np.where(world.sizes > 0, real, 0.0)))
        else:
            world.update(weighted(world, gradients, weighting))
        yield


def weighted(world: World, gradients: Array, weighting: str) -> Array:
    """The gradient that all apply [m]: by samples, or uniform over ranks that have any."""
    return mean(gradients, world.sizes if weighting == "samples" else (world.sizes > 0).astype(float))


def integers(wanted: Array, total: int, quantum: int) -> Array:
    """Whole multiples of `quantum` with sum `total`: floors, then largest remainders, ties to lower ranks."""
    units = wanted / quantum
    floors = np.floor(np.round(units, 9))
    remainders = np.round(units - floors, 9)
    left = total // quantum - int(floors.sum())
    for rank in sorted(range(len(wanted)), key=lambda rank: (-remainders[rank], rank))[:left]:
        floors[rank] += 1
    return (floors * quantum).astype(int)
