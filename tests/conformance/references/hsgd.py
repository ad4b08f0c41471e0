"""HSGD: gradients summed in each node, then between nodes."""

from collections.abc import Iterator
from typing import Any

import numpy as np
from identities import keeps_still
from numpy_optimizers import LARS_RECIPE, NESTEROV
from proof import Identity, Mixing, brief, usual
from world import World


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


CASES = (
    *usual({}),
    brief(recipe=LARS_RECIPE, ranks=((2, 1),)),
    brief(keys={"partition": "tensor"}, ranks=((2, 2),)),
    brief(keys={"shared_weights": False}, ranks=((2, 1),), recipe=LARS_RECIPE),
    brief(keys={"shared_weights": False, "partition": "tensor"}, ranks=((2, 2),)),
    brief(keys={"level1": "collective"}, ranks=((2, 1),)),
    brief(keys={"level2_algorithm": "linear"}, ranks=((2, 2),)),
)
IDENTITIES = (
    Identity(ranks=((1, 1), (2, 2), (4,), (3, 1)), recipes=(NESTEROV, LARS_RECIPE), samples="uneven"),
)
MIXING = (Mixing(keeps_still, {}, ((2, 2),)),)
VARIANTS = (
    {"partition": "tensor"},
    {"shared_weights": False},
    {"level1": "collective"},
    {"level2_algorithm": "linear"},
)
