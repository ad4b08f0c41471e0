"""Local SGD: local steps, and the mean of all models after every round."""

import math
from collections.abc import Iterator
from typing import Any

from identities import keeps_mean, keeps_still, weighs_ranks
from numpy_optimizers import ADAMW, NESTEROV
from proof import EVERY, Case, Identity, Mixing, brief, usual, warmed
from world import World


def local_sgd(
    world: World,
    *,
    sync_every: int = 8,
    period_rule: str = "constant",
    qsr_alpha: float | None = None,
    optimizer_state: str = "keep",
    buffers: str = "average",
    **keys: Any,
) -> Iterator[None]:
    """θ_i = opt(θ_i, g_i); after k mod H = 0 steps θ_i = mean.

    qsr: H = max(H0, ⌊(α/lr)²⌋) with lr at the round's start; H0 in rounds in which the rate rises.
    """
    since, period, first_rate = 0, sync_every, math.inf
    for _ in world.steps():
        if since == 0 and period_rule == "qsr":
            assert qsr_alpha is not None
            first_rate = world.lr
            period = max(sync_every, math.floor((qsr_alpha / first_rate) ** 2))
        elif world.lr > first_rate:
            period = sync_every
        world.update(world.gradients())
        since += world.ranks > 1  # a single rank has no rounds
        if since >= period:
            world.average(buffers, optimizer_state)
            since = 0
        yield
    if since:
        world.average(buffers, "keep")


CASES = (
    *usual({"sync_every": 4}),
    Case(keys={}, ranks=((2, 1),)),
    brief(keys={"sync_every": 3, "optimizer_state": "average"}, ranks=((2, 1),)),
    brief(keys={"sync_every": 3, "optimizer_state": "average"}, ranks=((1, 1),), recipe=ADAMW),
    brief(keys={"sync_every": 3, "optimizer_state": "reset", "buffers": "none"}, ranks=((2, 1),)),
    brief(keys={"sync_every": 3, "buffers": "broadcast"}, ranks=((2, 1),)),
    Case(
        keys={"sync_every": 2, "period_rule": "qsr", "qsr_alpha": 0.25},
        ranks=((2, 1),),
        rate=warmed,
        epochs=5,
    ),
)
IDENTITIES = (
    Identity(keys={"sync_every": 1}, breaks=(ADAMW,)),
    Identity(right=None, ranks=((1,),), recipes=EVERY, bitwise=True),
    Identity(
        keys={"sync_every": 2, "period_rule": "qsr", "qsr_alpha": 0.25},
        right="local_sgd",
        right_keys={"sync_every": 6},
        ranks=((1, 1),),
        recipes=(NESTEROV,),
        bitwise=True,
    ),
)
MIXING = (
    Mixing(keeps_still, {"sync_every": 3}, ((2, 2),)),
    Mixing(keeps_mean, {"sync_every": 3}, ((2, 2), (2, 1))),
    Mixing(weighs_ranks, {"sync_every": 3}, ((3, 1),)),
)
VARIANTS = (
    {"buffers": "broadcast", "optimizer_state": "average"},
    {"buffers": "none", "optimizer_state": "reset"},
    {"sync_every": 2, "period_rule": "qsr", "qsr_alpha": 0.034},
)
