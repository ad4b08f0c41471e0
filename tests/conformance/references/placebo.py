"""The placebo: ddp on pieces moved on by one rank."""

from collections.abc import Iterator
from typing import Any

from identities import keeps_still
from proof import EVERY, Case, Identity, Mixing
from world import World


def placebo(world: World, **keys: Any) -> Iterator[None]:
    """ddp, where rank r gets piece (r + 1) mod R of each global batch."""
    for _ in world.steps():
        pieces = world.pieces()
        gradients = world.gradients(pieces[1:] + pieces[:1])
        world.update(world.weights(keys.get("weighting", "samples")) @ gradients)
        yield


CASES = (Case(), Case(keys={"weighting": "uniform"}, ranks=((2, 1),)))
IDENTITIES = (
    Identity(ranks=((1, 1), (2,)), recipes=EVERY, samples="uneven", bitwise=True),
    Identity(ranks=((2, 1), (2, 2)), recipes=EVERY, samples="uneven"),
)
MIXING = (Mixing(keeps_still, {}, ((2, 2),)),)
VARIANTS = ()
