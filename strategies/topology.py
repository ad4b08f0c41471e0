"""Which ranks share a node, and the groups that follow from it.

The grouping comes from the launcher, never from the number of visible devices: a node that shows each task a
single GPU still holds all its ranks.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal


@dataclass(frozen=True)
class Group:
    """A set of ranks, named from the point of view of one of its members.

    `world` is everybody, `node` the ranks of my node, `peers` the ranks with local rank `local_rank`, one per
    node.
    """

    kind: Literal["world", "node", "peers"]
    local_rank: int = 0

    def __str__(self) -> str:
        return f"peers({self.local_rank})" if self.kind == "peers" else self.kind


WORLD = Group("world")
NODE = Group("node")


def peers(local_rank: int) -> Group:
    """The ranks with this local rank, one per node that has so many ranks."""
    return Group("peers", local_rank)


LEADERS = peers(0)


@dataclass(frozen=True)
class Topology:
    """The placement of R ranks on N nodes.

    `node_of_rank[r]` is the node (0 … N-1) of rank r. Nodes may be ragged.
    """

    node_of_rank: tuple[int, ...]
    local_ranks: tuple[int, ...] = field(init=False, compare=False)
    ranks_of_nodes: tuple[int, ...] = field(init=False, compare=False, repr=False)
    _members: dict[tuple[str, int], tuple[int, ...]] = field(
        init=False, compare=False, repr=False, default_factory=dict
    )

    _nodes: dict[int, tuple[tuple[int, ...], tuple[int, ...]]] = field(
        init=False, compare=False, repr=False, default_factory=dict
    )

    def __post_init__(self) -> None:
        if not self.node_of_rank or sorted(set(self.node_of_rank)) != list(range(max(self.node_of_rank) + 1)):
            raise ValueError(f"nodes must be numbered 0 … N-1 without gaps, got {list(self.node_of_rank)}")
        seen: dict[int, int] = {}
        local = []
        for node in self.node_of_rank:
            local.append(seen.get(node, 0))
            seen[node] = local[-1] + 1
        object.__setattr__(self, "local_ranks", tuple(local))
        object.__setattr__(self, "ranks_of_nodes", tuple(seen[node] for node in range(len(seen))))

    @classmethod
    def of(cls, ranks_of_nodes: Sequence[int]) -> "Topology":
        """Ranks numbered node by node: `of([3, 1])` puts ranks 0, 1, 2 on node 0 and rank 3 on node 1."""
        if not ranks_of_nodes or min(ranks_of_nodes) < 1:
            raise ValueError(f"every node needs at least one rank, got {list(ranks_of_nodes)}")
        return cls(tuple(node for node, ranks in enumerate(ranks_of_nodes) for _ in range(ranks)))

    @property
    def ranks(self) -> int:
        """R, the number of ranks."""
        return len(self.node_of_rank)

    @property
    def nodes(self) -> int:
        """N, the number of nodes."""
        return len(self.ranks_of_nodes)

    @property
    def uniform(self) -> bool:
        """Whether all nodes hold the same number of ranks."""
        return len(set(self.ranks_of_nodes)) == 1

    def on_node(self, node: int) -> tuple[int, ...]:
        """The ranks of a node, in local order."""
        return tuple(rank for rank, of in enumerate(self.node_of_rank) if of == node)

    def members(self, group: Group, rank: int) -> tuple[int, ...]:
        """The ranks of `group` as `rank` sees it, in the order in which `source` counts inside the group.

        The same tuple each time: a step of a thousand ranks asks a thousand times.
        """
        which = {"world": 0, "node": self.node_of_rank[rank], "peers": group.local_rank}[group.kind]
        members = self._members.get((group.kind, which))
        if members is None:
            members = self._members[group.kind, which] = self._find_members(group, rank)
        return members

    def _find_members(self, group: Group, rank: int) -> tuple[int, ...]:
        if group.kind == "world":
            return tuple(range(self.ranks))
        if group.kind == "node":
            return self.on_node(self.node_of_rank[rank])
        return tuple(other for other, local in enumerate(self.local_ranks) if local == group.local_rank)

    def nodes_of(self, ranks: tuple[int, ...]) -> tuple[int, ...]:
        """The nodes of these ranks, each once: of two ranks in their order, else ascending."""
        if len(ranks) == 2:  # pairs are new tuples each time
            return tuple(dict.fromkeys(self.node_of_rank[rank] for rank in ranks))
        known = self._nodes.get(id(ranks))
        if known is None or known[1] is not ranks:
            known = self._nodes[id(ranks)] = (
                tuple(sorted({self.node_of_rank[rank] for rank in ranks})),
                ranks,
            )
        return known[0]

    def spans_nodes(self, ranks: Sequence[int]) -> bool:
        """Whether traffic among these ranks crosses a link between nodes."""
        return len({self.node_of_rank[rank] for rank in ranks}) > 1
