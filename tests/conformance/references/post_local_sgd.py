"""Post-local SGD: synchronous steps up to a switch, then local SGD by ranks or by nodes."""

from collections.abc import Iterator
from typing import Any

from identities import keeps_mean, keeps_still, weighs_ranks
from numpy_optimizers import ADAMW
from proof import EVERY, Case, Identity, Mixing, falling, usual
from world import World, mean


def post_local_sgd(
    world: World,
    *,
    switch_samples: int | str = "auto",
    sync_every: int = 16,
    unit: str = "rank",
    optimizer_state: str = "keep",
    buffers: str = "average",
    **keys: Any,
) -> Iterator[None]:
    """ddp while samples < t'; then local steps (of nodes, with their mean gradient) and a mean every H.

    auto: t' is half of the run's samples (no schedule of a `Setting` has steps).
    """
    switch = world.budget // 2 if isinstance(switch_samples, str) else switch_samples
    workers = len(world.nodes) if unit == "node" else world.ranks
    since = 0
    for _ in world.steps():
        gradients = world.gradients()
        if world.samples < switch:
            world.update(mean(gradients, world.sizes))
            yield
            continue
        world.update(world.in_nodes(gradients) if unit == "node" else gradients)
        since += workers > 1  # a single worker has no rounds
        if since == sync_every:
            world.average(buffers, optimizer_state)
            since = 0
        yield
    if since:
        world.average(buffers, "keep")


CASES = (
    *usual({"sync_every": 4, "switch_samples": 100}),
    Case(keys={"sync_every": 4, "switch_samples": 0}, ranks=((2, 1),)),
    Case(keys={"sync_every": 4, "switch_samples": 100, "unit": "node"}),
    Case(
        keys={"sync_every": 4, "switch_samples": 57, "unit": "node", "optimizer_state": "average"},
        ranks=((2, 1),),
        recipe=ADAMW,
    ),
    Case(
        keys={"sync_every": 4, "switch_samples": 57, "optimizer_state": "reset"},
        ranks=((2, 1),),
        rate=falling(20),
        epochs=5,
    ),
)
IDENTITIES = (
    Identity(
        keys={"switch_samples": 0, "sync_every": 4},
        right="local_sgd",
        right_keys={"sync_every": 4},
        recipes=EVERY,
        bitwise=True,
    ),
    Identity(keys={"switch_samples": 10**9}, recipes=EVERY, samples="uneven", bitwise=True),
    Identity(
        keys={"switch_samples": 0, "unit": "node", "sync_every": 4},
        ranks=((3,),),
        recipes=EVERY,
        samples="uneven",
    ),
    Identity(
        keys={"switch_samples": 20, "sync_every": 4}, right=None, ranks=((1,),), recipes=EVERY, bitwise=True
    ),
)
MIXING = (
    Mixing(keeps_still, {"switch_samples": 0, "sync_every": 3}, ((2, 2),)),
    Mixing(keeps_mean, {"switch_samples": 0, "sync_every": 3}, ((2, 2), (2, 1))),
    Mixing(weighs_ranks, {"switch_samples": 0, "sync_every": 3, "unit": "node"}, ((3, 1),)),
)
VARIANTS = (
    {"unit": "node", "sync_every": 3, "switch_samples": 100},
    {"switch_samples": 0, "optimizer_state": "average"},
)
