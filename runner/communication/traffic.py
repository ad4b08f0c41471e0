"""Traffic of one rank: calls and bytes per class of links, and its blocked time: transfer and waiting."""

import hashlib
import json
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch

from ...strategies.communicator import Communicator, Link
from ...strategies.topology import Group, Topology

LINKS = ("intra", "inter")


Blocked = tuple[int, int, int, str]
"""The key of a collective in which this rank waited, when it entered and left it (nanoseconds on its own
clock), and the class of links that the interval was counted for."""

Way = tuple[str, str, int, int]
"""A group as one member sees it: the class of its links, that of the link to the member's successor, the
member's place, and the number of members."""

Call = tuple[str, str, Way, int, int, bool]
"""verb, channel, way, payload bytes, source, whether in training"""


@dataclass
class Traffic:
    """Counters of one rank's collectives.

    `payload_bytes` are counted: the bytes of the tensor handed to each call, under `inter` when the group
    spans nodes. `ring_bytes` are modelled: what this rank sends when each collective runs as a ring (chain
    for broadcast and reduce) laid out in rank order, under the class of the link to its successor. `launches`
    maps a collective's key, equal on all its members, to the time at which this rank entered it; kept if
    `stamps`.
    """

    topology: Topology
    rank: int
    stamps: bool = True
    training: bool = True  # bytes and blocked time are counted in training only
    launches: dict[int, int] = field(default_factory=dict)
    blocked: list[Blocked] = field(default_factory=list)
    blocked_ns: int = 0
    blocked_on: Counter[str] = field(default_factory=Counter)  # blocked_ns by class of links
    summing: str | None = None  # the class of links of the sum that this rank takes part in now
    waited_ns: int = 0  # waiting for other ranks since `clear_stamps`, as far as it is known
    _calls: Counter[str] = field(default_factory=Counter)
    _payload_bytes: Counter[str] = field(default_factory=Counter)
    _ring_bytes: Counter[str] = field(default_factory=Counter)
    _verbs: Counter[str] = field(default_factory=Counter)
    _sizes: set[tuple[str, int]] = field(default_factory=set)
    # Calls that are not yet in the counters above, and how often: steps repeat their calls.
    _alike: Counter[Call] = field(default_factory=Counter)
    _sequence: Counter[int] = field(default_factory=Counter)
    _groups: dict[tuple[str, int], tuple[int, tuple[int, ...]]] = field(default_factory=dict)
    _link_of: dict[int, str] = field(default_factory=dict)  # by a group's number
    _ways: dict[int, tuple[Way, tuple[int, ...]]] = field(default_factory=dict)

    def launch(self, channel: str, members: tuple[int, ...], now: int) -> int:
        """Stamp the entry into the next collective over `members`.

        Returns its key, the same on every member.
        """
        group = self._group(channel, members)
        key = group << 32 | self._sequence[group]
        self._sequence[group] += 1
        if self.stamps:
            self.launches[key] = now
        return key

    def _group(self, channel: str, members: tuple[int, ...]) -> int:
        """A number for this channel and group. Groups of a topology are the same tuples each time."""
        cached = self._groups.get((channel, id(members)))
        if cached is not None:
            return cached[0]
        text = f"{channel}{members}"
        group = int.from_bytes(hashlib.blake2b(text.encode(), digest_size=4).digest(), "big") >> 1
        if len(members) > 2:  # pairs are new tuples each time
            self._groups[channel, id(members)] = (group, members)
        self._link_of[group] = LINKS[self.topology.spans_nodes(members)]
        return group

    def _way(self, members: tuple[int, ...]) -> Way:
        """What counting needs of a group."""
        cached = self._ways.get(id(members))
        if cached is not None:
            return cached[0]
        place = members.index(self.rank)
        successor = members[(place + 1) % len(members)]
        link, hop = (LINKS[self.topology.spans_nodes(group)] for group in (members, (self.rank, successor)))
        way = link, hop, place, len(members)
        if len(members) > 2:
            self._ways[id(members)] = (way, members)
        return way

    def count(self, verb: str, channel: str, members: tuple[int, ...], payload: int, source: int = 0) -> None:
        """Count one call over `members` with `payload` bytes.

        Of control traffic, and outside of training, verbs are counted and bytes are not.
        """
        self._alike[verb, channel, self._way(members), payload, source, self.training] += 1

    def mark(self, verb: str) -> None:
        """Count a call that sends nothing."""
        self._verbs[verb] += 1

    @property
    def calls(self) -> Counter[str]:
        self._book()
        return self._calls

    @property
    def payload_bytes(self) -> Counter[str]:
        self._book()
        return self._payload_bytes

    @property
    def ring_bytes(self) -> Counter[str]:
        """Modelled bytes by class of link."""
        self._book()
        return self._ring_bytes

    @property
    def verbs(self) -> Counter[str]:
        """Calls by `channel.verb`."""
        self._book()
        return self._verbs

    def sizes(self, link: str) -> set[int]:
        """Bytes of the payloads that went over this class of links since the last `clear`, control apart."""
        self._book()
        return {size for link_of_size, size in self._sizes if link_of_size == link and size}

    def _book(self) -> None:
        alike, self._alike = self._alike, Counter()
        for (verb, channel, way, payload, source, training), times in alike.items():
            link, hop, place, members = way
            self._verbs[f"{channel}.{verb}"] += times
            if channel != "control":
                self._sizes.add((link, payload))
            if channel != "control" and training:
                self._calls[link] += times
                self._payload_bytes[link] += times * payload
                sent = ring_bytes(verb, members, payload, (place - source) % members)
                self._ring_bytes[hop] += times * sent

    def block(self, key: int, entered: int, left: int, waited: int | None = None) -> None:
        """Count that this rank waited from `entered` to `left` in the collective `key` (-1: a message).

        `waited`: how long of it for others to enter, if known now; else `split_waiting` finds it later.
        Waiting for others counts for `summing`, if that is set; the transfer counts for the collective's own
        links.
        """
        if not self.training:
            return
        booked = self.summing or self._link_of_key(key)
        self.blocked_ns += left - entered
        self.blocked_on[booked] += left - entered
        if waited is None:
            self.blocked.append((key, entered, left, booked))
        else:
            self._split((key, entered, left, booked), waited)

    def split_waiting(self, launches_of_ranks: Sequence[Sequence[tuple[int, int]]]) -> None:
        """Add to `waited_ns` how long this rank waited in collectives for members that were not there yet.

        `launches_of_ranks`: key and entry stamp of each rank's collectives, on one common clock. For a
        collective entered at a_i and left at z_i the waiting is min(z_i, max_j a_j) - a_i; the rest of the
        blocked time is transfer.
        """
        last: dict[int, int] = {}
        for launches in launches_of_ranks:
            for key, stamp in launches:
                last[key] = max(last.get(key, stamp), stamp)
        for blocked in self.blocked:
            key, entered, left, _ = blocked
            if key in last:
                self._split(blocked, max(0, min(left, last[key]) - entered))

    def _split(self, blocked: Blocked, waited: int) -> None:
        """`waited` nanoseconds of an interval were waiting; count the rest for the collective's own links."""
        key, entered, left, booked = blocked
        self.waited_ns += waited
        transfer = max(0, left - entered - waited)
        self.blocked_on[booked] -= transfer
        self.blocked_on[self._link_of_key(key)] += transfer

    def _link_of_key(self, key: int) -> str:
        """The class of links of a collective; of messages and helper threads it is unknown: the widest."""
        return self._link_of.get(key >> 32, LINKS[self.topology.nodes > 1])

    def clear(self) -> None:
        """Forget everything (after the undone warm-up step)."""
        self._alike.clear()
        books = (self._calls, self._payload_bytes, self._ring_bytes, self._verbs, self._sizes)
        for book in (*books, self.blocked_on):
            book.clear()
        self.clear_stamps()
        self.blocked_ns = 0

    def clear_stamps(self) -> None:
        """Forget the stamps of the training interval that just ended."""
        self.launches.clear()
        self.blocked.clear()
        self.waited_ns = 0

    def totals(self) -> dict[str, dict[str, int]]:
        books = {"calls": self.calls, "payload_bytes": self.payload_bytes, "ring_bytes": self.ring_bytes}
        return {name: {link: book[link] for link in LINKS} for name, book in books.items()}

    def state_dict(self) -> dict[str, dict[str, int]]:
        return {**self.totals(), "verbs": dict(self.verbs), "blocked_ns": dict(self.blocked_on)}

    def load_state_dict(self, state: dict[str, dict[str, int]]) -> None:
        self.clear()
        self._calls.update(state["calls"])
        self._payload_bytes.update(state["payload_bytes"])
        self._ring_bytes.update(state["ring_bytes"])
        self._verbs.update(state["verbs"])
        self.blocked_on.update(state["blocked_ns"])


class CountedCommunicator(Communicator):
    """A communicator that counts its traffic: real processes and virtual time."""

    traffic: Traffic

    def gather_values(self, value: Any) -> list[Any]:
        """All ranks' values in rank order, which JSON must be able to hold; their sizes may differ."""
        text = torch.frombuffer(bytearray(json.dumps(value).encode()), dtype=torch.uint8)
        lengths = self.gather(torch.tensor([len(text)])).flatten().tolist()
        padded = torch.zeros(max(lengths), dtype=torch.uint8)
        padded[: len(text)] = text
        pieces = self.gather(padded).numpy()
        return [json.loads(piece[:length].tobytes()) for piece, length in zip(pieces, lengths, strict=True)]

    def broadcast_text(self, text: str, group: Group) -> str:
        """The first member's text of at most 256 bytes."""
        message = torch.zeros(256, dtype=torch.uint8)
        message[: len(text)] = torch.tensor(list(text.encode()), dtype=torch.uint8)
        self.broadcast(message, 0, group, channel="control").wait()
        return bytes(message.tolist()).rstrip(b"\0").decode()

    @contextmanager
    def summing(self, link: Link) -> Iterator[None]:
        traffic, before = self.traffic, self.traffic.summing
        entered, blocked = self.now(), traffic.blocked_ns
        link = link if self.topology.nodes > 1 else "intra"
        traffic.summing = link
        try:
            yield
        finally:
            traffic.summing = before
        if self.host_waits and traffic.training:  # where a GPU computes, the host goes on
            arithmetic_ns = self.now() - entered - (traffic.blocked_ns - blocked)
            traffic.blocked_ns += arithmetic_ns
            traffic.blocked_on[link] += arithmetic_ns


def ring_bytes(verb: str, members: int, payload: int, distance: int) -> int:
    """Modelled bytes that one member sends; `distance` counts from source or destination along the ring.

    `payload` is the whole vector for all verbs but all_gather, where it is one member's piece.
    """
    if verb == "all_reduce":
        return 2 * (members - 1) * payload // members
    if verb == "reduce_scatter":
        return (members - 1) * payload // members
    if verb == "all_gather":
        return (members - 1) * payload
    if verb == "broadcast":  # a chain: the last member before the source sends nothing on
        return 0 if distance == members - 1 else payload
    if verb == "reduce":  # the chain in the other direction: all members but the destination send once
        return 0 if distance == 0 else payload
    return payload
