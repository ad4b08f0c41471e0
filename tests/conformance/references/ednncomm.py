"""EDNNComm: gradients averaged in each node, models between nodes every K steps."""

from collections.abc import Iterator
from typing import Any

from identities import keeps_still, weighs_ranks
from numpy_optimizers import ADAMW
from proof import EVERY, RAGGED, Case, Identity, Mixing, brief, usual
from world import World, mean


def ednncomm(
    world: World,
    *,
    sync_every: int | str = "auto",
    sync_at_epoch_end: bool = True,
    buffers: str = "average",
    optimizer_state: str = "keep",
    **keys: Any,
) -> Iterator[None]:
    """Node-mean gradients in each step; every K steps θ = Σ_j (b_j/B_global)·θ_j, b_j of a full batch."""
    period = world.setting.steps_per_epoch if sync_every == "auto" else int(sync_every)
    weights = world.full_batch
    since = 0

    def exchange(state: str) -> None:
        world.theta[:] = mean(world.theta, weights)  # the ranks of a node are equal: b_r sum to b_j
        world.mix_buffers(buffers, weights)
        world.mix_optimizers(state, weights)

    for _ in world.steps():
        world.update(world.in_nodes(world.gradients()))
        since += 1
        if len(world.nodes) > 1 and (since == period or (world.last_batch and sync_at_epoch_end)):
            exchange(optimizer_state)
            since = 0
        yield
    if since and len(world.nodes) > 1:
        exchange("keep")
    if buffers != "broadcast":
        world.mix_buffers("average", weights)  # a model is judged with these, `none` or not


CASES = (
    *usual({"sync_every": 4}),
    Case(),
    brief(keys={"sync_every": 4, "sync_at_epoch_end": False}),
    brief(keys={"sync_every": 4, "exchange": "world", "buffers": "none"}, ranks=((2, 2), (3, 1, 2))),
    brief(keys={"sync_every": 4, "exchange": "sliced"}, ranks=((2, 2), (3, 3))),
    brief(keys={"sync_every": 4, "optimizer_state": "average"}, ranks=((2, 1),)),
    brief(keys={"sync_every": 4, "optimizer_state": "reset", "buffers": "broadcast"}, ranks=((2, 1),)),
    brief(keys={"sync_every": 1}, ranks=((2, 1),), recipe=ADAMW),
)
IDENTITIES = (
    Identity(keys={"sync_every": 1}, ranks=(*RAGGED, (3, 1)), samples="full", breaks=(ADAMW,)),
    Identity(keys={"sync_every": 3}, ranks=((1,), (3,)), samples="uneven", recipes=EVERY, bitwise=True),
    Identity(
        keys={"sync_every": 4, "sync_at_epoch_end": False},
        right="local_sgd",
        right_keys={"sync_every": 4},
        ranks=((1, 1), (1, 1, 1)),
        recipes=EVERY,
    ),
)
MIXING = (
    Mixing(keeps_still, {"sync_every": 3}, ((2, 2),)),
    Mixing(weighs_ranks, {"sync_every": 3}, ((3, 1),)),
)
VARIANTS = (
    {"sync_every": "auto"},
    {"sync_every": 4, "sync_at_epoch_end": False, "exchange": "world"},
    {"exchange": "sliced", "buffers": "broadcast", "optimizer_state": "average"},
)
