"""References of gossip: mixing matrices, nothing else."""

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
from identities import agrees_in, keeps_mean, keeps_still, weighs_ranks
from numpy_models import Array
from numpy_optimizers import ADAMW
from proof import EVERY, RAGGED, Case, Identity, Mixing, brief, usual
from world import World


def sgp(
    world: World,
    *,
    num_peers: int = 1,
    graph: str = "exponential",
    direction: str = "push",
    **keys: Any,
) -> Iterator[None]:
    """x = opt(x, g at z), then x = P·x and w = P·w, z = x/w; column i of P: where rank i's shares go."""
    ranks = world.ranks
    numerators, weights = world.theta.copy(), np.ones(ranks)
    matrices = mixing(ranks, num_peers, graph, direction)
    for k in world.steps():
        gradients = world.gradients()  # at z, which is world.theta
        world.theta[:] = numerators
        world.update(gradients)
        matrix = matrices[(k - 1) % len(matrices)]
        numerators, weights = matrix @ world.theta, matrix @ weights
        world.theta[:] = numerators / weights[:, None]
        yield
    world.theta[:] = numerators.sum(0) / weights.sum()
    world.buffers[:] = world.buffers.mean(0)


def mixing(ranks: int, num_peers: int, graph: str, direction: str) -> list[Array]:
    """The matrices of one cycle: column i holds the share of i's that each rank receives."""
    if ranks == 1:
        return [np.eye(1)]
    if graph == "complete":
        cycle = [list(range(1, ranks))]
    elif graph == "ring":
        cycle = [list(range(1, num_peers + 1))]
    else:
        stages = math.floor(math.log(ranks - 1, num_peers + 1) + 1e-9)
        cycle = [[j * (num_peers + 1) ** e for j in range(1, num_peers + 1)] for e in range(stages + 1)]
    return [_matrix(ranks, hops, direction) for hops in cycle]


def _matrix(ranks: int, hops: list[int], direction: str) -> Array:
    steps = hops + [-hop for hop in hops] if direction == "push_pull" else hops
    matrix = np.zeros((ranks, ranks))
    for rank in range(ranks):
        for hop in [0, *steps]:
            matrix[(rank + hop) % ranks, rank] += 1 / (len(steps) + 1)
    return matrix


CASES = (
    *usual({}),
    brief(keys={"send_weight": "true"}, ranks=((2, 2),)),
    Case(ranks=((4, 4),)),
    brief(ranks=((3, 3),)),
    brief(keys={"num_peers": 2}, ranks=((4, 4), (3, 3), (2, 2))),
    brief(keys={"num_peers": 3}, ranks=((4, 4),)),
    brief(keys={"graph": "ring"}, ranks=((2, 2),)),
    brief(keys={"graph": "ring", "num_peers": 2}, ranks=((3, 2),)),
    brief(keys={"graph": "complete"}, ranks=((2, 1),)),
    brief(keys={"direction": "push_pull"}, ranks=((4, 4), (2, 1))),
    brief(keys={"direction": "push_pull", "graph": "ring"}, ranks=((2, 2),)),
)
IDENTITIES = (
    Identity(ranks=((1, 1), (2,)), breaks=(ADAMW,)),
    Identity(keys={"graph": "complete"}, ranks=RAGGED, breaks=(ADAMW,)),
    Identity(
        keys={"graph": "ring"},
        right="sgp",
        right_keys={"send_weight": "true"},
        ranks=((1, 1),),
        recipes=EVERY,
    ),
    Identity(right=None, ranks=((1,),), recipes=EVERY, bitwise=True),
)
MIXING = (
    Mixing(keeps_still, {}, ((2, 2),)),
    Mixing(keeps_mean, {}, ((2, 2), (2, 1))),
    Mixing(weighs_ranks, {}, ((3, 1),)),
    Mixing(agrees_in(lambda ranks: ranks.bit_length() - 1), {}, ((1, 1), (2, 2), (4, 4))),
    Mixing(agrees_in(lambda ranks: 1), {"graph": "complete"}, ((1, 1), (2, 1), (3, 3))),
)
VARIANTS = (
    {"num_peers": 2},
    {"graph": "ring", "send_weight": "true"},
    {"graph": "complete", "direction": "push_pull"},
)
