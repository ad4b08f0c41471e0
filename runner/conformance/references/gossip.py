"""References of gossip: mixing matrices, nothing else."""

import math
from collections.abc import Iterator
from typing import Any

import numpy as np

from ..twins import Array
from .world import World


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
