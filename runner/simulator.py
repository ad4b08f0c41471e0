"""Virtual time: every rank is a greenlet, and the one with the smallest clock runs next.

A rank that polls at time t has therefore seen everything that happened before t. Clocks are integer
nanoseconds, so sums of durations are exact. A run that cannot go on says who waits for what.
"""

import heapq
import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from greenlet import getcurrent, greenlet

from ..strategies.topology import Topology


class Network(Protocol):
    """How long a transfer takes."""

    def duration_ns(self, verb: str, members: Sequence[int], payload: int, inter: bool) -> int:
        """Nanoseconds of a collective of `payload` bytes among `members`, alone on its links."""
        ...


@dataclass(frozen=True)
class AlphaBeta:
    """α–β cost per link class: `latency_s` seconds a message, `bytes_per_s` on a link. Default: free.

    All-reduce costs a ring's 2(n-1)·α + 2(n-1)/n · bytes/β, broadcast and reduce a pipelined tree's ⌈log2
    n⌉·α + bytes/β.
    """

    intra_latency_s: float = 0.0
    intra_bytes_per_s: float = math.inf
    inter_latency_s: float = 0.0
    inter_bytes_per_s: float = math.inf

    def duration_ns(self, verb: str, members: Sequence[int], payload: int, inter: bool) -> int:
        alpha = self.inter_latency_s if inter else self.intra_latency_s
        beta = self.inter_bytes_per_s if inter else self.intra_bytes_per_s
        n = len(members)
        tree = math.ceil(math.log2(n))
        messages, volume = {
            "all_reduce": (2 * (n - 1), 2 * (n - 1) / n * payload),
            "reduce_scatter": (n - 1, (n - 1) / n * payload),
            "all_gather": (n - 1, (n - 1) * payload),
            "barrier": (2 * tree, 0),
            "send": (1, payload),
        }.get(verb, (tree, payload))
        return round((messages * alpha + volume / beta) * 1e9)


@dataclass
class Operation:
    """A collective in virtual time; it starts when the last member has entered and its links are free."""

    verb: str
    members: tuple[int, ...]
    entered: dict[int, Any] = field(default_factory=dict)
    results: dict[int, Any] = field(default_factory=dict)
    end: int | None = None
    waiters: list[greenlet] = field(default_factory=list)

    def told(self) -> str:
        """What it is and who is missing."""
        missing = [member for member in self.members if member not in self.entered]
        return f"{self.verb} over {self.members} for ranks {missing}"


class Deadlock(RuntimeError):
    """No rank can go on. The message lists what each one waits for."""


class Simulator:
    """Runs one body per rank against a network; time passes only in `advance` and in waits."""

    def __init__(self, topology: Topology, network: Network | None = None) -> None:
        self.topology = topology
        self.network = network or AlphaBeta()
        self.time = [0] * topology.ranks
        self.shared: dict[Any, Any] = {}
        self._queue: list[tuple[int, int, greenlet]] = []
        self._ticket = itertools.count()
        self._operations: dict[Any, Operation] = {}
        self._busy: dict[int, int] = {}
        self._waiting_for: dict[int, Operation] = {}
        self._hub: greenlet | None = None
        self._rank_of: dict[greenlet, int] = {}

    def run(self, body: Callable[[int], Any]) -> list[Any]:
        """Run `body(rank)` for every rank to its end.

        Returns their results. An exception of any rank ends the run.
        """
        self._hub = getcurrent()
        results: list[Any] = [None] * self.topology.ranks

        def guarded(rank: int) -> Callable[[], None]:
            def call() -> None:
                results[rank] = body(rank)

            return call

        ranks = [greenlet(guarded(rank)) for rank in range(self.topology.ranks)]
        self._rank_of = {one: rank for rank, one in enumerate(ranks)}
        for one in ranks:
            self._push(0, one)
        while self._queue:
            time, _, one = heapq.heappop(self._queue)
            self.time[self._rank_of[one]] = time
            one.switch()
        stuck = [rank for rank, one in enumerate(ranks) if not one.dead]
        if stuck:
            waits = "; ".join(f"rank {rank} waits in {self._waiting_for[rank].told()}" for rank in stuck)
            raise Deadlock(f"no rank can go on: {waits}")
        return results

    def advance(self, rank: int, nanoseconds: int) -> None:
        """Let `nanoseconds` pass on the clock of the running rank."""
        if nanoseconds:
            self._sleep_until(self.time[rank] + nanoseconds)

    def enter(
        self,
        rank: int,
        key: Any,
        verb: str,
        members: tuple[int, ...],
        what: Any,
        payload: int,
        combine: Callable[[dict[int, Any]], dict[int, Any]],
    ) -> Operation:
        """`rank` enters the operation `key`; the last one to enter fixes its end and computes all results."""
        operation = self._operations.setdefault(key, Operation(verb, members))
        if (operation.verb, operation.members) != (verb, members):
            raise RuntimeError(
                f"ranks disagree on their collectives: rank {rank} calls {verb} over {members}, "
                f"another one {operation.verb} over {operation.members}"
            )
        operation.entered[rank] = what
        if len(operation.entered) == len(members):
            del self._operations[key]
            operation.results = combine(operation.entered)
            inter = self.topology.spans_nodes(members)
            duration = self.network.duration_ns(verb, members, payload, inter)
            links = sorted({self.topology.node_of_rank[m] for m in members}) if inter and duration else []
            start = max([self.time[rank], *(self._busy.get(link, 0) for link in links)])
            operation.end = start + duration
            for link in links:
                self._busy[link] = operation.end
            for waiter in operation.waiters:
                self._push(operation.end, waiter)
        return operation

    def wait(self, rank: int, operation: Operation) -> None:
        """Let the running rank's clock go on to the end of `operation`."""
        if operation.end is None:
            operation.waiters.append(getcurrent())
            self._waiting_for[rank] = operation
            self._switch()
        elif operation.end > self.time[rank]:
            self._sleep_until(operation.end)

    def _sleep_until(self, time: int) -> None:
        self._push(time, getcurrent())
        self._switch()

    def _push(self, time: int, one: greenlet) -> None:
        heapq.heappush(self._queue, (time, next(self._ticket), one))

    def _switch(self) -> None:
        assert self._hub is not None, "time passes only inside run()"
        self._hub.switch()
