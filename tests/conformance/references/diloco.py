"""DiLoCo: local steps, and an outer Nesterov step on the mean change of a round."""

from collections.abc import Iterator
from typing import Any

import numpy as np
from identities import keeps_still
from numpy_optimizers import ADAMW
from proof import EVERY, Case, Identity, Mixing, brief, usual
from world import World, mean


def diloco(
    world: World,
    *,
    sync_every: int = 20,
    outer_lr: float = 0.7,
    outer_momentum: float = 0.9,
    optimizer_state: str = "keep",
    buffers: str = "average",
    **keys: Any,
) -> Iterator[None]:
    """After H steps from θ: Δ = mean(θ - θ_i), u = μ·u + Δ, θ = θ - ν·(Δ + μ·u)."""
    common, momentum = world.theta[0].copy(), np.zeros(world.theta.shape[1])
    since = 0
    for _ in world.steps():
        world.update(world.gradients())
        since += 1
        if since == sync_every:
            delta = mean(common - world.theta)
            momentum = outer_momentum * momentum + delta
            common = common - outer_lr * (delta + outer_momentum * momentum)
            world.average(buffers, optimizer_state)
            world.theta[:] = common
            since = 0
        yield
    if since:
        world.average(buffers, "keep")


CASES = (
    *usual({"sync_every": 4}),
    Case(keys={}, ranks=((2, 1),), epochs=5),
    Case(keys={"sync_every": 3, "outer_momentum": 0.4, "outer_lr": 1.0}, ranks=((2, 1),)),
    Case(keys={"sync_every": 3, "outer_momentum": 0.0}, ranks=((2, 1),)),
    brief(keys={"sync_every": 3, "outer_device": "device"}, ranks=((2, 1),)),
)
IDENTITIES = (
    Identity(
        keys={"sync_every": 4, "outer_lr": 1.0, "outer_momentum": 0.0},
        right="local_sgd",
        right_keys={"sync_every": 4},
        recipes=EVERY,
    ),
    Identity(keys={"sync_every": 1, "outer_lr": 1.0, "outer_momentum": 0.0}, breaks=(ADAMW,)),
)
MIXING = (Mixing(keeps_still, {"sync_every": 3}, ((2, 2),)),)
VARIANTS = ({"outer_momentum": 0.0, "buffers": "none", "optimizer_state": "average"},)
