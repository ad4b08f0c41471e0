"""Real processes of one machine on modelled links: an operation ends when it would on the cluster's network.

The data travel as they always do; an operation is then held back until α–β time has passed, by the formulas
of virtual time (`network`): it begins when the last member has come and the links it holds are free,

    begin = max(now at the last arrival, busy-until of its links),   end = begin + cost,   busy-until = end,

and every member sees it completed at the later of `end` and of its real completion. A broadcast begins when
its source comes. The clocks of the links are shared by all ranks, in memory that they all map: one machine,
any backend. What a rank does meanwhile is its own business: nobody waits who would not
wait for the real thing, except that on a GPU the host stands still where its stream would.
"""

import fcntl
import heapq
import mmap
import os
import threading
import time
from collections import Counter
from collections.abc import Callable, Hashable, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import product
from typing import Any

import torch

from ...strategies.topology import Topology
from ..machine import shared_memory
from .link_costs import Network

SLOTS = 512  # operations of a group under way at once, at most
_WORDS = 3  # of a slot: number of the operation + 1, members that have come, end
_POLL_S = 1e-4

Line = tuple[str, tuple[int, ...]]
"""A channel and its members: their operations happen in one order, the same for all of them."""


class LinkClocks:
    """The clocks of all modelled links, one object per rank. Lines and links are numbered alike on all ranks.

    Args:
        address: of the memory that holds them, of `make`; it may go once all ranks have taken it.
        lines: all groups with their channels, of collectives; pairs for messages are added.
    """

    def __init__(self, address: str, topology: Topology, network: Network, lines: Sequence[Line]) -> None:
        self._topology, self._network = topology, network
        self._lines = {line: place for place, line in enumerate(_all_lines(topology, lines))}
        self._links = {link: place for place, link in enumerate(_all_links(topology))}
        self._numbers: Counter[Line] = Counter()
        self._thread = threading.Lock()
        self._file = shared_memory.take(address)
        self._words = memoryview(mmap.mmap(self._file, 0)).cast("q")

    def enter(
        self, verb: str, channel: str, members: tuple[int, ...], payload: int, rank: int, source: int = 0
    ) -> "Held":
        """This rank comes to its next operation on that line, now. `source`: place of a broadcast's source.

        A message is the verb `send`, its members (sender, receiver), entered by both.
        """
        line = (channel, members)
        cost = self._network.cost(self._topology, verb, members, payload)
        with self._thread, self._locked():
            number = self._numbers[line]
            self._numbers[line] += 1
            slot = self._slot(line, number, verb)
            now = time.monotonic_ns()
            words = self._words
            words[slot + 1] += 1
            last = words[slot + 1] == len(members)
            if last if verb != "broadcast" else members[source] == rank:
                held = [self._links[link] for link in cost.links]
                begin = max([now, *(words[place] for place in held)])
                words[slot + 2] = begin + cost.duration_ns
                for place in held:
                    words[place] = begin + cost.duration_ns
        return Held(self, slot, number, now + cost.duration_ns)

    def end_of(self, slot: int, number: int) -> int | None:
        """When the operation ends, by the machine's monotonic clock; None while that is open."""
        words = self._words
        end = words[slot + 2]
        # A slot that is in use again: so many operations later, this one has long ended.
        return 1 if words[slot] != number + 1 else end or None

    def close(self) -> None:
        """Forget the memory."""
        self._words.release()
        os.close(self._file)

    def _slot(self, line: Line, number: int, verb: str) -> int:
        base = len(self._links) + (self._lines[line] * SLOTS + number % SLOTS) * _WORDS
        words, members = self._words, len(line[1])
        if words[base] != number + 1:
            if words[base] and words[base + 1] != members:
                raise RuntimeError(
                    f"{verb} on {line[0]}: more than {SLOTS} operations of one group are under way at once"
                )
            words[base], words[base + 1], words[base + 2] = number + 1, 0, 0
        return base

    @contextmanager
    def _locked(self) -> Any:
        # A lock of the memory: the kernel takes it back from a process that dies.
        fcntl.flock(self._file, fcntl.LOCK_EX)
        try:
            yield
        finally:
            fcntl.flock(self._file, fcntl.LOCK_UN)


@dataclass(frozen=True, slots=True)
class Held:
    """An operation that is held back. `alone_ns`: when it would end if nobody were waited for."""

    clocks: LinkClocks
    slot: int
    number: int
    alone_ns: int

    def end_ns(self) -> int | None:
        """When it ends on the modelled network; None while somebody is missing."""
        return self.clocks.end_of(self.slot, self.number)

    def over(self) -> bool:
        """Whether it has ended."""
        end = self.end_ns()
        return end is not None and time.monotonic_ns() >= end

    def wait(self) -> int:
        """Return at its end, which it returns; call it once the real operation is completed here."""
        # Some real operations let a rank go that others have not joined (a reduce's leaves): it pays its own.
        end = self.end_ns() or self.alone_ns
        sleep_until(end)
        return end


def sleep_until(end_ns: int) -> None:
    """Sleep to a moment of the monotonic clock."""
    while (rest := end_ns - time.monotonic_ns()) > 0:
        time.sleep(rest / 1e9)


class Deferrer:
    """Calls functions at given moments, on a thread of its own: what completes a future of a held operation.

    `ready`: asked before the call, so that a GPU's work that is not done yet is waited for.
    """

    def __init__(self) -> None:
        self._wake = threading.Condition()
        self._queue: list[tuple[int, int, Callable[[], None], Callable[[], bool]]] = []
        self._count = 0
        self._thread: threading.Thread | None = None

    def at(self, end_ns: int, call: Callable[[], None], ready: Callable[[], bool] = lambda: True) -> None:
        """Call `call` at `end_ns` of the monotonic clock, or at once if that has passed."""
        with self._wake:
            self._count += 1
            heapq.heappush(self._queue, (end_ns, self._count, call, ready))
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="modelled network", daemon=True)
                self._thread.start()
            self._wake.notify()

    def _run(self) -> None:
        while True:
            with self._wake:
                while not self._queue:
                    self._wake.wait()
                end, _, call, ready = self._queue[0]
                rest = (end - time.monotonic_ns()) / 1e9
                if rest > 0:
                    self._wake.wait(rest)
                    continue
                if not ready():
                    self._wake.wait(_POLL_S)
                    continue
                heapq.heappop(self._queue)
            call()


def make(topology: Topology, lines: Sequence[Line]) -> tuple[int, str]:
    """New memory with all clocks at 0: its descriptor, and the address by which other ranks take it.

    Raises MachineError.
    """
    words = len(_all_links(topology)) + len(_all_lines(topology, lines)) * SLOTS * _WORDS
    return shared_memory.offer(words, torch.int64)


def _all_lines(topology: Topology, lines: Sequence[Line]) -> list[Line]:
    ranks = range(topology.ranks)
    pairs: list[Line] = [("messages", pair) for pair in product(ranks, ranks) if pair[0] != pair[1]]
    return [*dict.fromkeys(lines), *pairs]


def _all_links(topology: Topology) -> list[Hashable]:
    """Every link that a cost can name (`network.directed`), in one order: cards of nodes, ranks, nodes."""
    cards = [(node, card) for node in range(topology.nodes) for card in range(max(topology.ranks_of_nodes))]
    ranks = [("rank", rank) for rank in range(topology.ranks)]
    ends: list[Hashable] = [*cards, *ranks, *range(topology.nodes)]
    return [(end, way) for end in ends for way in ("out", "in")]
