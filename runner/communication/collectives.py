"""How long a collective of NCCL takes: a latency, a rate, and one number for the curve between them.

    T(S) = t0 + S/B + 2 · ramp · √(t0 · S/B)

ramp = 0 is α–β; ramp = 1 is (√t0 + √(S/B))², the best that a pipelined chain can do. For n ranks on N nodes,
at most g of them on a node, with hops a_i inside and a_e between nodes, an all-reduce has

    t0 = launch + 2 · ((g-1) · a_i + ⌊log2 N⌋ · a_e)
    B  = N = 1:  n/2(n-1) · max(R_i, R_nvls)
         N > 1:  the largest of n/2(n-1) · min(net, R_i)                           a ring
                                0.46 · min(net, R_i · g/(g-1))                     a tree
                                n/2(n-1) · min(R_nvls, net)                        NVLS, switches that add

where the network of two nodes counts twice in the last two (a tree of two nodes sends the payload once); not
in a tree of one rank a node. The hops are those of NVIDIA/nccl `src/graph/tuning.cc`; 0.46 is its 0.92 for
trees, over two. This is not NCCL's own model, which chooses between algorithms and times them badly.
"""

import math
from dataclasses import dataclass

from ..config.cluster import LinksConfig

TREE = 0.46  # of the rate: a tree's payload travels up and down, at 0.92
NVLS_RANKS = 5  # of a node, at least: with fewer NCCL takes rings


@dataclass(frozen=True)
class Ends:
    """The ends of a curve over message size: the time of no payload, and bytes of payload a second."""

    latency_s: float
    bytes_per_s: float


def ends(verb: str, nodes: int, most: int, ranks: int, net_bytes_per_s: float, links: LinksConfig) -> Ends:
    """The ends of `verb` among `ranks` ranks on `nodes` nodes, at most `most` of them on a node.

    `net_bytes_per_s`: of all cards that the ranks of the slowest node have together. The payload is one
    rank's: of an all-gather the piece of one rank, else the whole vector.
    """
    once_us = math.floor(math.log2(nodes)) * links.inter.latency_us + (most - 1) * links.intra.latency_us
    inside = links.intra.bytes_per_s if most > 1 else math.inf
    flat = inside if nodes == 1 else min(net_bytes_per_s, inside)
    both_ways = verb in ("all_reduce", "barrier")
    rate = {
        "all_reduce": lambda: _all_reduce(nodes, most, ranks, net_bytes_per_s, inside, links),
        "reduce_scatter": lambda: ranks / (ranks - 1) * flat,
        "all_gather": lambda: flat / (ranks - 1),
    }.get(verb, lambda: flat)
    return Ends((links.launch_us + (1 + both_ways) * once_us) / 1e6, rate())


def seconds(payload: float, curve: Ends, ramp: float) -> float:
    """The time of `payload` bytes; `ramp` from 0 to 1."""
    transfer = payload / curve.bytes_per_s
    return curve.latency_s + transfer + 2 * ramp * math.sqrt(curve.latency_s * transfer)


def through(small_s: float, large_bytes: float, large_s: float, ramp: float) -> Ends:
    """The ends of the curve through two measurements: a message without payload to speak of, and a large one.

    `large_s` must not be below `small_s`.
    """
    root = math.sqrt(ramp * ramp * small_s + large_s - small_s) - ramp * math.sqrt(small_s)
    return Ends(small_s, large_bytes / root**2 if root else math.inf)


def _all_reduce(nodes: int, most: int, ranks: int, net: float, inside: float, links: LinksConfig) -> float:
    """Bytes of payload a second of the fastest way."""
    ring = ranks / (2 * (ranks - 1))
    switches = (links.nvls_gbit or 0.0) * 1e9 / 8 if most >= NVLS_RANKS else 0.0
    if nodes == 1:
        return ring * max(inside, switches)
    twice = 2 * net if nodes == 2 else net
    tree = TREE * (min(twice, inside * most / (most - 1)) if most > 1 else net)
    return max(ring * min(net, inside), tree, ring * min(switches, twice))
