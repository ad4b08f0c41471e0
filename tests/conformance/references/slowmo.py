"""SlowMo: local SGD with slow momentum on the change of a round."""

from collections.abc import Iterator
from typing import Any

import numpy as np
from identities import keeps_still
from proof import EVERY, Case, Identity, Mixing, brief, falling, usual
from world import World, mean


def slowmo(
    world: World,
    *,
    sync_every: int = 12,
    slow_momentum: float = 0.7,
    slow_lr: float = 1.0,
    optimizer_state: str = "keep",
    buffers: str = "average",
    **keys: Any,
) -> Iterator[None]:
    """After H local steps from θ_t with mean m: u = β·u + (θ_t - m)/lr, θ_{t+1} = θ_t - α·lr·u.

    lr: the mean of the round's rates.
    """
    common, slow = world.theta[0].copy(), np.zeros(world.theta.shape[1])
    rates: list[float] = []
    for _ in world.steps():
        world.update(world.gradients())
        rates.append(world.lr)
        if len(rates) == sync_every:
            rate = sum(rates) / sync_every
            slow = slow_momentum * slow + (common - mean(world.theta)) / rate
            common = common - slow_lr * rate * slow
            world.average(buffers, optimizer_state)
            world.theta[:] = common
            rates = []
        yield
    if rates:
        world.average(buffers, "keep")


CASES = (
    *usual({"sync_every": 4}),
    Case(keys={}, ranks=((2, 1),)),
    brief(keys={"sync_every": 3, "slow_momentum": 0.4, "slow_lr": 0.7}, ranks=((2, 1),)),
    brief(keys={"sync_every": 3, "optimizer_state": "reset"}, ranks=((2, 1),)),
    Case(keys={"sync_every": 4}, ranks=((2, 1),), rate=falling(16), epochs=5),
)
IDENTITIES = (
    Identity(
        keys={"sync_every": 4, "slow_momentum": 0.0, "slow_lr": 1.0},
        right="local_sgd",
        right_keys={"sync_every": 4},
        recipes=EVERY,
    ),
)
MIXING = (Mixing(keeps_still, {"sync_every": 3}, ((2, 2),)),)
VARIANTS = ({"slow_lr": 0.5, "buffers": "broadcast", "optimizer_state": "reset"},)
