"""DDP: gradients averaged over all ranks in every step, in full, in 16 bits or by PowerSGD."""

from collections.abc import Iterator
from typing import Any

import numpy as np
from identities import keeps_still
from numpy_models import Array
from numpy_optimizers import LARS_RECIPE, MOMENTUM, NESTEROV
from proof import EVERY, RAGGED, Case, Identity, Mixing, brief, falling, usual
from world import NoReference, World, narrow_sum


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
    compressor = Compressor(
        world, powersgd_rank, powersgd_start_steps, powersgd_min_compression, error_feedback, warm_start
    )
    for k in world.steps():
        gradients = world.gradients()
        shares = world.weights(weighting)
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
        for part in self.world.setting.model.parts:
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


SMALL_BUCKETS = {"bucket_mib": 1e-4}  # 104 bytes: several buckets
POWERSGD = {"hook": "powersgd", "powersgd_start_steps": 3}

CASES = (
    *usual({}),
    Case(recipe=MOMENTUM, ranks=((2, 1),), rate=falling(15), epochs=5),
    brief(recipe=LARS_RECIPE, ranks=((2, 1),)),
    brief(keys={"weighting": "uniform"}, ranks=((2, 1),)),
    brief(keys=SMALL_BUCKETS, ranks=((2, 1),)),
    brief(keys={"algorithm": "hierarchical", **SMALL_BUCKETS}, ranks=((2, 2), (2, 1), (3, 1))),
    brief(keys={"algorithm": "sliced", **SMALL_BUCKETS}, ranks=((2, 2),)),
    brief(keys={"hook": "bf16", **SMALL_BUCKETS}, ranks=((2, 1),)),
    brief(keys={"hook": "fp16", "algorithm": "hierarchical"}, ranks=((2, 1),)),
    brief(keys=POWERSGD, ranks=((1, 1), (2, 1))),
    brief(
        keys={**POWERSGD, **SMALL_BUCKETS, "powersgd_rank": 2, "powersgd_min_compression": 1.0},
        ranks=((2, 1),),
    ),
    brief(keys={**POWERSGD, "error_feedback": False}, ranks=((2, 1),)),
    brief(keys={**POWERSGD, "warm_start": False}, ranks=((2, 1),)),
    brief(keys={**POWERSGD, "weighting": "uniform", "algorithm": "hierarchical"}, ranks=((2, 2),)),
)
IDENTITIES = (
    Identity(right=None, ranks=((1,),), recipes=EVERY, bitwise=True),
    Identity(right=None, ranks=RAGGED, recipes=EVERY, samples="uneven"),
    Identity(
        keys={"algorithm": "hierarchical"},
        ranks=((2, 2), (4, 2), (2, 1), (3, 1)),
        recipes=(NESTEROV,),
        samples="uneven",
    ),
    Identity(keys={"algorithm": "sliced"}, ranks=((2, 2), (3, 3)), recipes=(NESTEROV,), samples="uneven"),
    Identity(
        keys={
            "hook": "powersgd",
            "powersgd_rank": 5,
            "powersgd_start_steps": 2,
            "powersgd_min_compression": 0.1,
        },
        ranks=((1, 1), (2, 1)),
        recipes=(NESTEROV,),
        samples="uneven",
        tolerance=1e-9,
    ),
)
MIXING = (Mixing(keeps_still, {}, ((2, 2),)),)
VARIANTS = (
    {"algorithm": "hierarchical"},
    {"algorithm": "sliced"},
    {"algorithm": "hierarchical", "hook": "bf16"},
    {"hook": "powersgd", "powersgd_start_steps": 2, "powersgd_min_compression": 1.0, "bucket_mib": 1e-4},
)
