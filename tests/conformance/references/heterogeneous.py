"""The reference of heterogeneous: shares from speeds, batches from shares, weights from either."""

from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
from identities import keeps_still
from numpy_models import Array
from numpy_optimizers import ADAMW, NESTEROV
from proof import EVERY, RAGGED, Case, Identity, Mixing, brief, skewed, usual
from world import NoReference, World, mean


def heterogeneous(
    world: World,
    *,
    weighting: str = "samples",
    balancing: str = "static",
    shares: Sequence[float] | None = None,
    max_batch: Sequence[int] | None = None,
    calibration_model: str = "affine",
    rebalance_timing: str = "probe",
    **keys: Any,
) -> Iterator[None]:
    """Global batches cut by shares; g = Σ w_r·g_r with w_r by samples, by real-valued shares, or uniform.

    Times of steps are exactly t_r(b) = a_r + c_r·b, given by `Setting.step_time`.
    """
    if calibration_model != "affine" or rebalance_timing != "probe":
        raise NoReference("no reference for shares from other times than those of whole steps")
    total, ranks = int(world.full_batch.sum()), world.ranks
    most = list(max_batch or [total])
    limits = [(1, high) for high in (most * ranks if len(most) == 1 else most)]

    def by_shares(p: Array) -> Array:
        return level(lambda scale: scale * p, total, limits)

    if balancing == "static":
        fixed, per_sample = timing(world)
        real = level(lambda time: (time - fixed) / per_sample, total, limits)
    else:
        real = by_shares(np.ones(ranks) if shares is None else np.array(shares, dtype=float))
    full = integers(real, total, limits)
    for k in world.steps():
        epoch, batch = divmod(k - 1, world.setting.steps_per_epoch)
        if balancing == "dynamic" and batch == 0 and epoch > 0:
            fixed, per_sample = timing(world)
            times = fixed + per_sample * full
            if times.max() / times.mean() > 1.05:
                real = by_shares(full / times / (full / times).sum())
                full = integers(real, total, limits)
        pieces = world.pieces()
        x, t = (np.concatenate([piece[side] for piece in pieces]) for side in (0, 1))
        sizes = full if len(x) == total else _short(full, len(x))
        edges = np.cumsum([0, *sizes])
        mine = [slice(a, b) for a, b in pairwise(edges)]
        gradients = world.gradients([(x[cut], t[cut]) for cut in mine])
        if weighting == "speed":
            world.update(mean(gradients, np.where(world.sizes > 0, real, 0.0)))
        else:
            world.update(world.weights(weighting) @ gradients)
        yield
    world.mix_buffers("average", full)


def level(batches: Callable[[float], Array], total: int, limits: Sequence[tuple[int, int]]) -> Array:
    """The b_r = clip(batches(T), limits) with Σ b_r = total; `batches` grows with T > 0."""
    lows, highs = np.array(limits, dtype=float).T
    early, late = 0.0, 1.0
    while np.clip(batches(late), lows, highs).sum() < total:
        late *= 2
    for _ in range(200):
        middle = (early + late) / 2
        if np.clip(batches(middle), lows, highs).sum() < total:
            early = middle
        else:
            late = middle
    return np.clip(batches(late), lows, highs)


def integers(wanted: Array, total: int, limits: Sequence[tuple[int, int]]) -> Array:
    """Whole numbers with sum `total`: floors, then largest remainders, ties to lower ranks."""
    units = np.round(wanted, 9)
    floors = np.floor(units)
    left = total - int(floors.sum())
    for rank in sorted(range(len(wanted)), key=lambda rank: (-round(units[rank] - floors[rank], 9), rank)):
        if left and floors[rank] + 1 <= limits[rank][1]:
            floors[rank] += 1
            left -= 1
    return floors.astype(int)


def _short(full: Array, size: int) -> Array:
    """A short batch in the ratio of the full one."""
    return integers(full * size / full.sum(), size, [(0, size)] * len(full))


def timing(world: World) -> tuple[Array, Array]:
    """a_r and c_r [R]."""
    time = world.setting.step_time
    if time is None:
        raise NoReference("no reference for shares from measured times, without times")
    one, two = (np.array([time(rank, n) for rank in range(world.ranks)], dtype=float) for n in (1, 2))
    return 2 * one - two, two - one


SHARES = {"balancing": "manual", "shares": (0.7, 0.25, 0.05)}

CASES = (
    *usual(SHARES, ((2, 1),)),
    Case(keys={"balancing": "equal"}),
    brief(keys={**SHARES, "weighting": "speed"}, ranks=((2, 1),)),
    brief(keys={**SHARES, "weighting": "uniform"}, ranks=((2, 1),)),
    brief(keys={**SHARES, "max_batch": (4,)}, ranks=((2, 1),)),
    Case(step_ns=skewed, ranks=((2, 2),)),
    Case(keys={"balancing": "dynamic"}, step_ns=skewed, ranks=((2, 2), (2, 1)), epochs=5),
)
IDENTITIES = (
    Identity(keys={"balancing": "equal"}, ranks=RAGGED, recipes=EVERY, samples="uneven"),
    Identity(
        keys=SHARES,
        right=None,
        ranks=((2, 1),),
        recipes=(NESTEROV, ADAMW),
        samples="uneven",
    ),
)
MIXING = (Mixing(keeps_still, {"balancing": "equal"}, ((2, 2),)),)
VARIANTS = (
    {"balancing": "dynamic", "weighting": "speed"},
    {"balancing": "manual", "shares": (4.0, 3.0, 2.0, 2.0)},
)
