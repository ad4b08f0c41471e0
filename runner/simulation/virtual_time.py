"""Virtual time: every rank is a greenlet, and the rank with the smallest clock runs next.

A rank that polls at time t has therefore seen everything that happened before t. Clocks are integer
nanoseconds, so sums of durations are exact. Where no rank can go on, the error lists what each waits for.
"""

import heapq
import itertools
import math
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from greenlet import getcurrent, greenlet
from torch import Tensor

from ...strategies.topology import Topology
from ..communication.link_costs import AlphaBeta, Cost, Network
from .timeline import Timeline

MOST_POLLS = 100_000  # of a rank in a row while no time passes: it would poll for ever


@dataclass(eq=False, slots=True)
class Collective:
    """A collective or a message in virtual time.

    It starts when the last member has entered and its links are free; `start` and `end` are None until then.
    Where links are shared fairly, a transfer that enters later can still put the end off, but never to before
    the present.
    """

    verb: str
    members: tuple[int, ...]
    entered: dict[int, Any] = field(default_factory=dict)
    results: dict[int, Any] = field(default_factory=dict)
    start: int | None = None
    ready: int | None = None  # when the last member entered
    end: int | None = None
    waiters: list[greenlet] = field(default_factory=list)
    # Under way on links that are shared fairly: nanoseconds that it would need alone, from `since` on.
    links: tuple[Hashable, ...] = ()
    left: float = 0.0
    since: int = 0

    def describe(self) -> str:
        """Its verb, its members and the ranks that are missing."""
        missing = [member for member in self.members if self.ready is None and member not in self.entered]
        return f"{self.verb} over {self.members} for ranks {missing}"


class BucketSums:
    """DDP's sums of buckets over one group: entered together, ready one after the other.

    Part k is ready when the last member has come to its time for it; `total` is made once, when first asked
    for, by when all members have entered.
    """

    verb = "all_reduce"

    def __init__(self, members: tuple[int, ...], payloads: Sequence[int]) -> None:
        self.members, self.payloads = members, payloads
        self.entered: dict[int, Any] = {}
        self.parts = [Collective(self.verb, members, self.entered) for _ in payloads]
        self.ready = [0] * len(payloads)
        self._total: Any = None

    def total(self) -> Any:
        """The sum of what all members gave."""
        if self._total is None:
            self._total = rank_order_sum({rank: give() for rank, give in self.entered.items()})
            self.entered.clear()
        return self._total


class OutOfTime(RuntimeError):
    """`until_ns` has come."""


class Deadlock(RuntimeError):
    """No rank can go on. The message lists what each rank waits for."""


class Simulator:
    """Runs one body per rank against a network; time passes only in `advance` and in waits.

    `now` is the clock of the rank that runs; `time` holds each rank's clock when it last ran. Transfers and
    waits are written to `timeline`.
    """

    def __init__(
        self, topology: Topology, network: Network | None = None, timeline: Timeline | None = None
    ) -> None:
        self.topology = topology
        self.network = network or AlphaBeta()
        self.timeline = timeline
        self.now = 0
        self.time = [0] * topology.ranks
        self.shared: dict[Any, Any] = {}
        self.stop_possible = False  # whether a rank has written a stop request into a message
        self._queue: list[tuple[int, int, greenlet | Callable[[], None]]] = []  # greenlets and calls by time
        self._ticket = itertools.count()
        self._operations: dict[Any, Collective | BucketSums] = {}
        self._links_carry = FairLinks().carry if self.network.sharing == "fair" else fifo_links()
        self._waiting_for: dict[greenlet, Collective] = {}
        self._hub: greenlet | None = None
        self._rank_of: dict[greenlet, int] = {}
        self._helpers: set[greenlet] = set()
        self._polls = 0

    def run(self, body: Callable[[int], Any], *, until_ns: int | None = None) -> list[Any]:
        """Run `body(rank)` for every rank to its end, or to `until_ns`, whatever comes first.

        Returns their results. An exception of any rank ends the run. Raises Deadlock if no rank can go on;
        OutOfTime.
        """
        self._hub = getcurrent()
        results: list[Any] = [None] * self.topology.ranks

        def call(rank: int) -> None:
            results[rank] = body(rank)

        ranks = [greenlet(partial(call, rank)) for rank in range(self.topology.ranks)]
        self._rank_of = {thread: rank for rank, thread in enumerate(ranks)}
        for thread in ranks:
            self._push(0, thread)
        while self._queue:
            time, _, thread = heapq.heappop(self._queue)
            if until_ns is not None and time > until_ns:
                raise OutOfTime
            self.now, self._polls = time, 0
            if not isinstance(thread, greenlet):
                thread()
                continue
            if thread not in self._helpers:
                self.time[self._rank_of[thread]] = time
            thread.switch()
        stuck = [thread for thread in self._rank_of if not thread.dead]
        if stuck:
            raise Deadlock(f"no rank can go on: {'; '.join(map(self._wait_of, stuck))}")
        return results

    def advance(self, rank: int, nanoseconds: int) -> None:
        """Let `nanoseconds` pass on the clock of the running rank."""
        if nanoseconds:
            self._sleep_until(self.now + nanoseconds)

    def start_helper(self, rank: int, body: Callable[[], None]) -> Collective:
        """Begin `body` now on its own clock, like a helper thread; the returned operation ends with it."""
        done = Collective("helper", (rank,), entered={rank: None})

        def call() -> None:
            body()
            done.end = self.now
            self._wake(done)
            self._helpers.discard(helper)
            del self._rank_of[helper]

        helper = greenlet(call, parent=self._hub)
        self._rank_of[helper] = rank
        self._helpers.add(helper)
        self._push(self.now, helper)
        return done

    @property
    def in_helper(self) -> bool:
        """Whether a helper runs now."""
        return getcurrent() in self._helpers

    def enter(
        self,
        rank: int,
        key: Any,
        verb: str,
        members: tuple[int, ...],
        what: Any,
        payload: int,
        combine: Callable[[dict[int, Any]], dict[int, Any]],
        channel: str = "parameters",
    ) -> Collective:
        """`rank` enters the operation `key`; the last one to enter fixes its end and computes all results."""
        operation = self._operations.get(key)
        if operation is None:
            operation = self._operations[key] = Collective(verb, members)
        elif type(operation) is not Collective or (operation.verb, operation.members) != (verb, members):
            raise _disagreement(rank, verb, members, operation)
        operation.entered[rank] = what
        if len(operation.entered) == len(members):
            del self._operations[key]
            operation.results = combine(operation.entered)
            operation.entered.clear()  # what ranks gave would live as long as the last of them waits
            self._carry(operation, payload, channel)
        return operation

    def enter_buckets(
        self,
        rank: int,
        key: Any,
        members: tuple[int, ...],
        what: Any,
        payloads: Sequence[int],
        times: Sequence[int],
    ) -> BucketSums:
        """`rank` enters sums of gradients: part k of `payloads[k]` bytes at `times[k]` >= now."""
        sums = self._operations.get(key)
        if sums is None:
            sums = self._operations[key] = BucketSums(members, payloads)
        elif type(sums) is not BucketSums or (sums.members, sums.payloads) != (members, payloads):
            raise _disagreement(rank, f"{len(payloads)} all_reduce", members, sums)
        sums.entered[rank] = what
        sums.ready = list(map(max, times, sums.ready))
        if len(sums.entered) == len(members):
            del self._operations[key]
            for part, payload, ready in zip(sums.parts, payloads, sums.ready, strict=True):
                if ready <= self.now:
                    self._carry(part, payload, "gradients")
                else:
                    self._push(ready, partial(self._carry, part, payload, "gradients"))
        return sums

    def _carry(self, operation: Collective, payload: int, channel: str) -> None:
        """The transfer is ready now: let the links carry it."""
        operation.ready = self.now
        cost = self.network.cost(self.topology, operation.verb, operation.members, payload)
        self._links_carry(operation, cost, self.now)
        if self.timeline is not None:
            self.timeline.transfer(operation, payload, channel, self.now)
        self._wake(operation)

    def poll(self, operation: Collective) -> bool:
        """Whether `operation` has ended by now.

        Raises RuntimeError for a rank that polls without end while no time passes.
        """
        self._polls += 1
        if self._polls > MOST_POLLS:
            raise RuntimeError(
                f"no time passes: a rank polls {operation.describe()} at {self.now} ns again and again; "
                "where ranks go at their own pace a step must take time"
            )
        return operation.end is not None and operation.end <= self.now

    def wait(self, rank: int, operation: Collective) -> None:
        """Let the running rank's clock go on to the end of `operation`."""
        while operation.end is None or operation.end > self.now:
            if operation.end is None:
                thread = getcurrent()
                operation.waiters.append(thread)
                self._waiting_for[thread] = operation
                self._switch()
                del self._waiting_for[thread]
            else:
                self._sleep_until(operation.end)

    def _wake(self, operation: Collective) -> None:
        assert operation.end is not None
        for waiter in operation.waiters:
            self._push(operation.end, waiter)
        operation.waiters.clear()

    def _wait_of(self, thread: greenlet) -> str:
        operation = self._waiting_for.get(thread)
        what = "nothing" if operation is None else operation.describe()
        return f"rank {self._rank_of[thread]} waits in {what}"

    def _sleep_until(self, time: int) -> None:
        self._push(time, getcurrent())
        self._switch()

    def _push(self, time: int, thread: greenlet | Callable[[], None]) -> None:
        heapq.heappush(self._queue, (time, next(self._ticket), thread))

    def _switch(self) -> None:
        assert self._hub is not None, "time passes only inside run()"
        self._hub.switch()


def rank_order_sum(entered: dict[int, Tensor]) -> Tensor:
    """The sum in rank order, so that a run is the same bit for bit however its ranks were scheduled."""
    first, *others = (entered[rank] for rank in sorted(entered))
    total = first.clone()
    for other in others:
        total += other
    return total


def _disagreement(
    rank: int, verb: str, members: tuple[int, ...], earlier: Collective | BucketSums
) -> RuntimeError:
    return RuntimeError(
        f"ranks disagree on their collectives: rank {rank} calls {verb} over {members}, "
        f"another one {earlier.verb} over {earlier.members}"
    )


Carry = Callable[[Collective, Cost, int], None]
"""Sets the end of a transfer of this cost that is ready now: (operation, cost, now)."""


def fifo_links() -> Carry:
    """Each link carries one transfer at a time; one that uses several waits until all of them are free."""
    busy_until: dict[Hashable, int] = {}

    def carry(operation: Collective, cost: Cost, now: int) -> None:
        start = max([now, *(busy_until.get(link, 0) for link in cost.links)])
        operation.start, operation.end = start, start + cost.duration_ns
        for link in cost.links:
            busy_until[link] = operation.end

    return carry


class FairLinks:
    """All transfers at once: of k on its busiest link, one gets 1/k of its speed.

    (Processor sharing of equal shares; what a transfer leaves unused on its other links stays unused.) A new
    transfer changes only those that it shares a link with, directly or through others.
    """

    def __init__(self) -> None:
        self._on_link: dict[Hashable, dict[Collective, None]] = {}  # in order, so that a run is reproducible

    def carry(self, operation: Collective, cost: Cost, now: int) -> None:
        """Set the end of a transfer that is ready now, and of those that it slows."""
        operation.start = now
        if not cost.links:
            operation.end = now + cost.duration_ns
            return
        affected: dict[Collective, None] = {}
        for link in cost.links:
            group = self._connected(link)
            if group and next(iter(group)) not in affected:
                affected |= dict.fromkeys(self._advance(group, now))
        operation.links, operation.left, operation.since = cost.links, float(cost.duration_ns), now
        for link in cost.links:
            self._on_link.setdefault(link, {})[operation] = None
        self._run({op: op.left for op in [*affected, operation]}, now, math.inf)

    def _connected(self, link: Hashable) -> list[Collective]:
        """The transfers under way on a link, and those that they share links with, and so on."""
        connected = dict.fromkeys(self._on_link.get(link, ()))
        waiting = list(connected)
        while waiting:
            for shared in waiting.pop().links:
                new = [operation for operation in self._on_link[shared] if operation not in connected]
                connected |= dict.fromkeys(new)
                waiting += new
        return list(connected)

    def _advance(self, group: list[Collective], now: int) -> list[Collective]:
        """Bring transfers that depend on each other to the present; returns those still under way."""
        since = group[0].since
        left = self._run({operation: operation.left for operation in group}, since, now - since)
        for operation in group:
            if operation in left:
                operation.left, operation.since = left[operation], now
                continue
            for link in operation.links:
                del self._on_link[link][operation]
        return list(left)

    def _run(self, left: dict[Collective, float], began: int, until: float) -> dict[Collective, float]:
        """What is left after `until` nanoseconds; those that end get their end.

        Time counts from `began`, so that it is exact however late in a run.
        """
        passed = 0.0
        while left and passed < until:
            on_link: dict[Hashable, int] = {}
            for operation in left:
                for link in operation.links:
                    on_link[link] = on_link.get(link, 0) + 1
            shared = {op: max(on_link[link] for link in op.links) for op in left}
            needs = {op: left[op] * shared[op] for op in left}
            step = min(until - passed, min(needs.values()))
            passed += step
            for operation, need in needs.items():
                if need - step <= 1e-6 * shared[operation]:  # a millionth of a nanosecond is rounding
                    operation.end = began + math.ceil(passed - 1e-3)
                    del left[operation]
                else:
                    left[operation] -= step / shared[operation]
        return left
