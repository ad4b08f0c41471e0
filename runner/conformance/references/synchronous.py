"""References of strategies that average gradients over all ranks in every step."""

from collections.abc import Iterator
from typing import Any

import numpy as np

from ..twins import Array
from .world import NoReference, World, narrow_sum


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
    """g = Σ n_r·g_r / Σ n_r (`uniform`: the plain mean), one optimizer step. `hook`: how the sum is made."""
    if algorithm == "best" and hook != "none":
        raise NoReference("no reference for 16-bit sums in an order that is chosen by time")
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

    def __init__(self, world: World, rank: int, start: int, least: float, feedback: bool, warm: bool) -> None:
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


def weights_of(world: World, weighting: str) -> Array:
    """w_r [R] of the step: by samples, or uniform over ranks that have any."""
    weights = world.sizes if weighting == "samples" else (world.sizes > 0).astype(float)
    return weights / weights.sum()
