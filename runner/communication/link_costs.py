"""The time of a transfer on a cluster's links (α–β costs), and the network cards that it occupies.

α–β costs: R. Thakur, R. Rabenseifner, W. Gropp, Optimization of Collective Communication Operations in
MPICH, IJHPCA 19(1), 2005. For n members on N nodes, at most g of them on one node, S bytes, latencies α_i
and α_e, rates β_i and β_e inside and between nodes (β_e of all cards that the members have together):

    ring          2(n-1)·α + 2(n-1)/n · S/β                          α, β of the slowest link on the way
    tree          2(⌈log2 N⌉·α_e + ⌈log2 g⌉·α_i) + 2(n-1)/n · S/β   two trees, each carries one half
    hierarchical  2(g-1)·α_i + 2(g-1)/g · S/β_i + 2(N-1)·α_e + 2(N-1)/N · S/β_e
    auto          the fastest of them

A broadcast or reduce is a pipelined tree, ⌈log2⌉ levels of α and S/β. With `links.model=nccl` a transfer
takes what `collectives` says.
"""

import math
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from functools import cached_property

from ...strategies.topology import Topology
from ..config.cluster import LinkConfig, LinksConfig
from .collectives import ends, seconds


@dataclass(frozen=True)
class Cost:
    """A transfer alone on its links: nanoseconds, and the links that it occupies."""

    duration_ns: int
    links: tuple[Hashable, ...] = ()


class Network(ABC):
    """Costs of transfers, and how they share links: `fifo` one after the other, `fair` all at once."""

    @property
    def sharing(self) -> str:
        return "fifo"

    @abstractmethod
    def duration_ns(self, verb: str, members: Sequence[int], payload: int, inter: bool) -> int:
        """Nanoseconds of a transfer of `payload` bytes among `members`, alone on its links."""

    def cost(self, topology: Topology, verb: str, members: Sequence[int], payload: int) -> Cost:
        """The duration and the occupied links. Default: each node has one link with two directions."""
        nodes = topology.nodes_of(tuple(members))
        inter = len(nodes) > 1
        took = self.duration_ns(verb, members, payload, inter)
        ends = nodes if verb == "send" else sorted(nodes)
        return Cost(took, directed(verb, ends) if inter and took else ())


@dataclass(frozen=True)
class AlphaBeta(Network):
    """One α and β for each class of links; each node has one link to the others. Default: all is free.

    Costs are those of a ring, for broadcast and reduce those of a pipelined tree (see the module).
    """

    intra_latency_s: float = 0.0
    intra_bytes_per_s: float = math.inf
    inter_latency_s: float = 0.0
    inter_bytes_per_s: float = math.inf
    fair: bool = False

    @property
    def sharing(self) -> str:
        return "fair" if self.fair else "fifo"

    def duration_ns(self, verb: str, members: Sequence[int], payload: int, inter: bool) -> int:
        alpha = self.inter_latency_s if inter else self.intra_latency_s
        beta = self.inter_bytes_per_s if inter else self.intra_bytes_per_s
        messages, volume = ring(verb, len(members), payload)
        return round((messages * alpha + volume / beta) * 1e9)


@dataclass(frozen=True)
class ClusterNetwork(Network):
    """The links of a cluster's configuration."""

    links: LinksConfig
    topology: Topology

    @property
    def sharing(self) -> str:
        return self.links.sharing

    def duration_ns(self, verb: str, members: Sequence[int], payload: int, inter: bool) -> int:
        return self.cost(self.topology, verb, members, payload).duration_ns

    def cost(self, topology: Topology, verb: str, members: Sequence[int], payload: int) -> Cost:
        key = (verb, tuple(members), payload)
        if key not in self._known:
            self._known[key] = self._cost(*key)
        return self._known[key]

    @cached_property
    def _known(self) -> dict[tuple[str, tuple[int, ...], int], Cost]:
        return {}

    def _cost(self, verb: str, members: tuple[int, ...], payload: int) -> Cost:
        links, inter = self.links, self.links.inter
        cards = self._cards(members)
        most = max(Counter(self.topology.node_of_rank[member] for member in members).values())
        held: list[Hashable] = [("rank", member) for member in members]
        rate = math.inf
        if len(cards) > 1:
            held = [(node, card) for node, of_node in cards.items() for card in of_node]
            rate = inter.bytes_per_s * min(len(own) * self._speed(node) for node, own in cards.items())
            rate = min(rate, inter.cap_bytes_per_s)
        if links.model == "nccl" and len(members) > 1:
            curve = ends(verb, len(cards), most, len(members), rate, links)
            lasts = seconds(payload, curve, 0 if verb == "send" else links.ramp)  # one message has no chain
        else:
            lasts = self._alpha_beta(verb, len(cards), most, len(members), rate, payload)
        took = round(lasts * 1e9)
        return Cost(took, directed(verb, held) if took else ())

    def _alpha_beta(self, verb: str, nodes: int, most: int, ranks: int, rate: float, payload: int) -> float:
        """Seconds; `rate`: bytes a second of the cards of the slowest node."""
        links, intra = self.links, self.links.intra
        if nodes == 1:
            return _seconds(intra, *ring(verb, ranks, payload))
        alpha = links.inter.latency_us / 1e6
        slowest, latest = rate, alpha
        if most > 1:
            slowest = min(rate, intra.bytes_per_s, intra.cap_bytes_per_s)
            latest = max(alpha, intra.latency_us / 1e6)
        messages, volume = ring(verb, ranks, payload)
        flat = messages * latest + volume / slowest
        if verb != "all_reduce":
            return flat
        levels = math.ceil(math.log2(nodes)) * alpha + math.ceil(math.log2(most)) * intra.latency_us / 1e6
        ways = {"ring": flat, "tree": 2 * levels + volume / slowest, "hierarchical": flat}
        if most > 1:
            inside = _seconds(intra, *ring("all_reduce", most, payload))
            messages, volume = ring("all_reduce", nodes, payload)
            ways["hierarchical"] = inside + messages * alpha + volume / rate
        algorithm = "ring" if links.model == "gloo" else links.algorithm
        return min(ways.values()) if algorithm == "auto" else ways[algorithm]

    def _cards(self, members: tuple[int, ...]) -> dict[int, tuple[int, ...]]:
        """By node: the network cards that its members send through."""
        cards: dict[int, set[int]] = {}
        for member in members:
            node = self.topology.node_of_rank[member]
            of_node = self.topology.ranks_of_nodes[node]
            card = self.topology.local_ranks[member] * min(self.links.nics, of_node) // of_node
            cards.setdefault(node, set()).add(card)
        return {node: tuple(sorted(held)) for node, held in cards.items()}

    def _speed(self, node: int) -> float:
        return 1.0 if self.links.node_speeds is None else self.links.node_speeds[node]


def directed(verb: str, ends: Sequence[Hashable]) -> tuple[Hashable, ...]:
    """The directions that a transfer occupies: a message one out and one in, a collective all."""
    if verb == "send" and ends:
        source, destination = ends
        return (source, "out"), (destination, "in")
    return tuple((end, way) for end in ends for way in ("out", "in"))


def ring(verb: str, members: int, payload: int) -> tuple[int, float]:
    """Messages one after the other, and bytes through each link, of a ring (all-reduce and its halves), a
    pipelined tree (broadcast, reduce), two trees (barrier), or one message."""
    tree = math.ceil(math.log2(members))
    return {
        "all_reduce": (2 * (members - 1), 2 * (members - 1) / members * payload),
        "reduce_scatter": (members - 1, (members - 1) / members * payload),
        "all_gather": (members - 1, float((members - 1) * payload)),
        "barrier": (2 * tree, 0.0),
        "send": (1, float(payload)),
    }.get(verb, (tree, float(payload)))


def _seconds(link: LinkConfig, messages: int, volume: float) -> float:
    """Latency and transfer."""
    return messages * link.latency_us / 1e6 + volume / min(link.bytes_per_s, link.cap_bytes_per_s)
