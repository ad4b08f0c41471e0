"""What the ranks of a run must do, written down beforehand: which calls in which step, and how long it takes.

A script lists the operations of all ranks in the order in which they begin. From one list follow each rank's
calls (to compare with what it did) and its clock (to compare with virtual time).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from ...strategies.topology import Group, Topology
from ..communication.link_costs import Network
from .scenario import Call

StepNs = Callable[[int], int]
"""rank -> nanoseconds of its forward and backward."""


@dataclass
class Launched:
    """An operation under way: when it ends."""

    members: tuple[int, ...]
    end: int


@dataclass
class Script:
    """Writes the operations of a run one after the other; `clock` is each rank's time after them.

    A collective starts when its last member has come and the links of its nodes are free: each node's link
    between nodes carries one transfer at a time.
    """

    topology: Topology
    network: Network
    step_ns: StepNs
    calls: list[list[Call]] = field(init=False)
    clock: list[int] = field(init=False)
    step: int = 0
    during: str = "step"

    def __post_init__(self) -> None:
        ranks = self.topology.ranks
        self.calls = [[] for _ in range(ranks)]
        self.clock = [0] * ranks
        self._busy: dict[tuple[int, str], int] = {}

    def compute(self) -> None:
        """All ranks go forward and backward."""
        self.advance(self.step_ns)

    def advance(self, nanoseconds: Callable[[int], int]) -> None:
        """Every rank is busy by itself for so long."""
        for rank in range(self.topology.ranks):
            self.clock[rank] += nanoseconds(rank)

    def memory_barrier(self, group: Group) -> None:
        """A barrier through shared memory: it takes a barrier's time and is no call."""
        for members in self._groups(group):
            ready = max(self.clock[member] for member in members)
            self.wait(Launched(members, self._end("barrier", members, 0, ready)))

    def blocking(self, verb: str, channel: str, group: Group, numbytes: int) -> None:
        """A collective on every `group` that there is (each node has its own NODE), waited for at once."""
        for launched in self.launch(verb, channel, group, numbytes):
            self.wait(launched)

    def launch(self, verb: str, channel: str, group: Group, numbytes: int) -> list[Launched]:
        """Start a collective on every `group` that there is."""
        return [self._start(verb, channel, members, numbytes) for members in self._groups(group)]

    def wait(self, launched: Launched) -> None:
        """Its members stand still until it has ended."""
        for member in launched.members:
            self.clock[member] = max(self.clock[member], launched.end)

    def messages(self, pairs: Sequence[tuple[int, int]], numbytes: int) -> None:
        """Every (sender, receiver) exchanges at once and waits; ranks come by their clocks, sends first."""
        entered: dict[tuple[int, int], int] = {}
        ends: dict[tuple[int, int], int] = {}
        for rank in sorted(range(self.topology.ranks), key=lambda rank: self.clock[rank]):
            sends = sorted(pair for pair in pairs if pair[0] == rank)
            receives = sorted(pair for pair in pairs if pair[1] == rank)
            for pair in [*sends, *receives]:
                if pair[0] == rank:
                    self.calls[rank].append(
                        Call(self.step, self.during, "parameters", "send", pair, numbytes)
                    )
                if pair in entered:
                    ends[pair] = self._end("send", pair, numbytes, max(entered[pair], self.clock[rank]))
                entered[pair] = self.clock[rank]
        for pair in pairs:
            self.wait(Launched(pair, ends[pair]))

    def _groups(self, group: Group) -> list[tuple[int, ...]]:
        """The members of every `group`, but for groups of one rank, which do nothing."""
        everybody = {self.topology.members(group, rank) for rank in range(self.topology.ranks)}
        return sorted(members for members in everybody if len(members) > 1)

    def _start(self, verb: str, channel: str, members: tuple[int, ...], numbytes: int) -> Launched:
        for member in members:
            self.calls[member].append(Call(self.step, self.during, channel, verb, members, numbytes))
        ready = max(self.clock[member] for member in members)
        return Launched(members, self._end(verb, members, numbytes, ready))

    def _end(self, verb: str, members: tuple[int, ...], numbytes: int, ready: int) -> int:
        inter = self.topology.spans_nodes(members)
        took = self.network.duration_ns(verb, members, numbytes, inter)
        nodes = [self.topology.node_of_rank[member] for member in members] if inter and took else []
        links = {(node, way) for node in nodes for way in ("out", "in")}
        if verb == "send" and nodes:  # a message goes out at one end and in at the other
            links = {(nodes[0], "out"), (nodes[1], "in")}
        end = max([ready, *(self._busy.get(link, 0) for link in links)]) + took
        for link in links:
            self._busy[link] = end
        return end
