"""References of strategies that average gradients over all ranks in every step."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from ..twins import Array
from .world import NoReference, World, mean, narrow_sum


def ddp(
    world: World,
    *,
    weighting: str = "samples",
    algorithm: str = "flat",
    hook: str = "none",
    powersgd_rank: int = 1,
    powersgd_start_steps: int = 10,
    powersgd_min_compression: float = 2.0,
    error_feedback: bool = True,
    warm_start: bool = True,
    **keys: Any,
) -> Iterator[None]:
    """g = Σ n_r·g_r / Σ n_r (`uniform`: the plain mean), one optimizer step; `hook`: what becomes of the sum."""
    compressor = Compressor(
        world, powersgd_rank, powersgd_start_steps, powersgd_min_compression, error_feedback, warm_start
    )
    for k in world.steps():
        gradients = world.gradients()
        shares = weights_of(world, weighting)
        if hook == "powersgd" and world.ranks > 1:
            world.update(compressor.sum(shares[:, None] * gradients, k))
        elif hook != "none" and world.ranks > 1:
            dtype = {"bf16": "bfloat16", "fp16": "float16"}[hook]
            rows = shares[:, None] * gradients
            if algorithm in ("hierarchical", "sliced"):
                rows = np.stack([narrow_sum(rows[ranks], dtype) for ranks in world.nodes])
            world.update(narrow_sum(rows, dtype))
        else:
            world.update(shares @ gradients)
        yield


class Compressor:
    """PowerSGD on weighted gradients M_i = w_i·g_i + e_i, both factors renewed in every step.

    A = orthonormal(Σ M_i·Q), Q = Σ M_iᵀ·A, ĝ = A·Qᵀ, e_i = M_i - ĝ/R: Σ e_i is what ĝ still owes.
    """

    def __init__(
        self, world: World, rank: int, start: int, least: float, feedback: bool, warm: bool
    ) -> None:
        self.world, self.rank, self.start, self.least = world, rank, start, least
        self.feedback, self.warm = feedback, warm
        self.errors = np.zeros_like(world.theta)
        self.factors: dict[str, Array] = {}

    def sum(self, rows: Array, k: int) -> Array:
        """Σ rows [R, m] in step k = 1, 2, …, its matrices compressed after `start` steps."""
        total = rows.sum(0)
        if k <= self.start:
            return total
        at = 0
        for part in self.world.setting.twin.parts:
            here = slice(at, at + part.numel)
            at += part.numel
            if len(part.shape) > 1 and part.numel:
                n, m = part.shape[0], part.numel // part.shape[0]
                rank = min(self.rank, n, m)
                if (n + m) * rank * self.least < n * m:
                    matrices = (rows[:, here] + self.errors[:, here]).reshape(-1, n, m)
                    low = self.compress(part.name, matrices, rank, k)
                    total[here] = low.ravel()
                    if self.feedback:
                        owed = matrices - low / len(rows)
                        self.errors[:, here] = owed.reshape(len(rows), -1)
        return total

    def compress(self, name: str, matrices: Array, rank: int, k: int) -> Array:
        """ĝ [n, m] for M_i [R, n, m]."""
        factor = self.factors.get(name)
        if factor is None or not self.warm:
            draw = self.world.setting.factor
            if draw is None:
                raise NoReference("no reference for powersgd without its first factors")
            factor = draw(0 if self.warm else k, matrices.shape[1], matrices.shape[2], rank)
        left = np.linalg.svd(np.tensordot(matrices, factor, axes=1).sum(0), full_matrices=False)[0]
        self.factors[name] = np.einsum("inm,nr->mr", matrices, left)
        return left @ self.factors[name].T


def placebo(world: World, **keys: Any) -> Iterator[None]:
    """ddp, where rank r gets piece (r + 1) mod R of each global batch."""
    for _ in world.steps():
        pieces = world.pieces()
        gradients = world.gradients(pieces[1:] + pieces[:1])
        world.update(weights_of(world, keys.get("weighting", "samples")) @ gradients)
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
    max_batch: Sequence[int] | None = None,
    batch_quantum: int = 1,
    dynamic_start: str = "equal",
    rebalance_every_epochs: int = 1,
    rebalance_threshold: float = 0.05,
    rebalance_gain: float = 1.0,
    **keys: Any,
) -> Iterator[None]:
    """Global batches cut by shares; g = Σ w_r·g_r with w_r by samples, by real-valued shares, or uniform.

    Times of steps are exactly t_r(b) = a_r + c_r·b, given by `Setting.step_time`.
    """
    total, ranks = int(world.full_batch.sum()), world.ranks
    most = list(max_batch or [total])
    limits = [(min_batch, high) for high in (most * ranks if len(most) == 1 else most)]

    def seconds(rank: int, samples: float) -> float:
        fixed, per_sample = _timing(world)
        return fixed(rank) + per_sample(rank) * samples

    def by_speed() -> Array:
        fixed, per_sample = _timing(world)
        return level(lambda t: np.array([(t - fixed(r)) / per_sample(r) for r in range(ranks)]), total, limits)

    def by_shares(p: Array) -> Array:
        return level(lambda scale: scale * p, total, limits)

    first = dynamic_start if balancing == "dynamic" else balancing
    if first == "static":
        real = by_speed()
    else:
        real = by_shares(np.ones(ranks) if first == "equal" else np.array(shares, dtype=float))
    full = integers(real, total, limits, batch_quantum)
    for k in world.steps():
        epoch, batch = divmod(k - 1, world.setting.steps_per_epoch)
        if balancing == "dynamic" and batch == 0 and epoch > 0 and epoch % rebalance_every_epochs == 0:
            times = np.array([seconds(rank, full[rank]) for rank in range(ranks)])
            if times.max() / times.mean() > 1 + rebalance_threshold:
                speeds = full / times / (full / times).sum()
                real = by_shares((1 - rebalance_gain) * full / total + rebalance_gain * speeds)
                full = integers(real, total, limits, batch_quantum)
        pieces = world.pieces()
        x, t = (np.concatenate([piece[side] for piece in pieces]) for side in (0, 1))
        sizes = full if len(x) == total else _short(full, len(x), min_batch)
        edges = np.cumsum([0, *sizes])
        mine = [slice(a, b) for a, b in zip(edges[:-1], edges[1:], strict=True)]
        gradients = world.gradients([(x[cut], t[cut]) for cut in mine])
        if weighting == "speed":
            world.update(mean(gradients, np.where(world.sizes > 0, real, 0.0)))
        else:
            world.update(weights_of(world, weighting) @ gradients)
        yield


def weights_of(world: World, weighting: str) -> Array:
    """w_r [R] of the step: by samples, or uniform over ranks that have any."""
    weights = world.sizes if weighting == "samples" else (world.sizes > 0).astype(float)
    return weights / weights.sum()


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


def integers(wanted: Array, total: int, limits: Sequence[tuple[int, int]], quantum: int = 1) -> Array:
    """Whole multiples of `quantum` with sum `total`: floors, then largest remainders, ties to lower ranks."""
    units = np.round(wanted / quantum, 9)
    floors = np.floor(units)
    left = total // quantum - int(floors.sum())
    for rank in sorted(range(len(wanted)), key=lambda rank: (-round(units[rank] - floors[rank], 9), rank)):
        if left and (floors[rank] + 1) * quantum <= limits[rank][1]:
            floors[rank] += 1
            left -= 1
    return (floors * quantum).astype(int)


def _short(full: Array, size: int, least: int) -> Array:
    """A short batch in the ratio of the full one; pieces below `least` go to the largest."""
    sizes = integers(full * size / full.sum(), size, [(0, size)] * len(full))
    largest = max(range(len(full)), key=lambda rank: (full[rank], -rank))
    for rank, piece in enumerate(sizes):
        if 0 < piece < least and rank != largest:
            sizes[largest] += piece
            sizes[rank] = 0
    return sizes


def _timing(world: World) -> tuple[Callable[[int], float], Callable[[int], float]]:
    """(a_r, c_r) as functions of the rank."""
    time = world.setting.step_time
    if time is None:
        raise NoReference("no reference for shares from measured times, without times")
    return (lambda rank: 2 * time(rank, 1) - time(rank, 2)), (lambda rank: time(rank, 2) - time(rank, 1))
