"""The timeline of a run in virtual time, a file for Perfetto and chrome://tracing (Trace Event Format).

A node is shown as a process, each of its ranks as a thread. Below them is the node's network, with as many
threads as it carries transfers at once, since events of one thread must not overlap.
"""

import heapq
import itertools
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from ...strategies.topology import Topology

MOST = 500_000  # events: 50 to 130 MB, which a browser still draws
LISTED = 16  # members of a transfer by number; of more, how many


class Event(NamedTuple):
    """An interval of `rank` (None: of the node's network), virtual nanoseconds."""

    start: int
    end: int
    node: int
    rank: int | None
    name: str
    category: str
    args: dict[str, Any]


class Timeline:
    """Collects a run's events, the first `most` of them, in memory until `write`."""

    def __init__(self, topology: Topology, most: int = MOST) -> None:
        self._topology, self._most = topology, most
        self._events: list[Event] = []
        self._left_out = 0
        self._count = itertools.count()
        self._open: list[tuple[int, int, Any, dict[str, Any]]] = []  # a heap: the first end on top

    def compute(self, rank: int, start_ns: int, end_ns: int, name: str) -> None:
        """Add that `rank` computes `name`, forward or backward."""
        if end_ns > start_ns:
            self._add(Event(start_ns, end_ns, self._topology.node_of_rank[rank], rank, name, "compute", {}))

    def blocked(self, rank: int, start_ns: int, end_ns: int, verb: str) -> None:
        """Add that `rank` waited in a `verb`."""
        node = self._topology.node_of_rank[rank]
        self._add(Event(start_ns, end_ns, node, rank, f"wait for {verb}", "wait", {}))

    def transfer(self, operation: Any, payload_bytes: int, channel: str, now: int) -> None:
        """Add the simulator's `operation`, which all members have entered at `now`.

        It is read, and released with its tensors, once its end has passed: until then its end may move.
        """
        self._read_ended(now)
        assert operation.end is not None
        number, members = next(self._count), operation.members
        listed = ", ".join(map(str, members[:LISTED]))
        args = {
            "payload_bytes": payload_bytes,
            "channel": channel,
            "members": listed if len(members) <= LISTED else f"{listed}, ... ({len(members)} ranks)",
            "transfer": number,
        }
        heapq.heappush(self._open, (operation.end, number, operation, args))

    def write(self, path: Path) -> None:
        """Write the collected events, in the order of their start, atomically. Raises OSError.

        Transfers under way have the end that they would have had.
        """
        self._read_ended(None)
        other: dict[str, Any] = {"clock": "virtual"}
        if self._left_out:
            other["cut"] = f"{self._left_out} events after the first {len(self._events)} are left out"
        head = json.dumps({"displayTimeUnit": "ns", "otherData": other})
        temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
        try:
            with open(temporary, "w", encoding="ascii") as file:
                file.write(f'{head[:-1]}, "traceEvents": [')
                for number, row in enumerate(self._rows()):
                    file.write((",\n" if number else "\n") + json.dumps(row))
                file.write("\n]}\n")
            os.replace(temporary, path)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise

    def _add(self, event: Event) -> None:
        if len(self._events) < self._most:
            self._events.append(event)
        else:
            self._left_out += 1

    def _read_ended(self, now: int | None) -> None:
        """Read the transfers that have ended before `now` (None: all of them)."""
        while self._open and (now is None or self._open[0][0] < now):
            _, number, operation, args = self._open[0]
            assert operation.start is not None
            assert operation.end is not None
            if now is not None and operation.end >= now:
                heapq.heapreplace(self._open, (operation.end, number, operation, args))
                continue
            heapq.heappop(self._open)
            nodes = {self._topology.node_of_rank[member] for member in operation.members}
            link = "inter" if len(nodes) > 1 else "intra"
            for node in sorted(nodes):
                self._add(Event(operation.start, operation.end, node, None, operation.verb, link, args))

    def _rows(self) -> Iterator[dict[str, Any]]:
        """The rows of the file: first names, then events."""
        events = sorted(self._events, key=lambda event: (event.start, event.end))
        lanes = _lanes(events)
        nodes = self._topology.node_of_rank
        threads = {(node, rank): f"rank {rank}" for rank, node in enumerate(nodes)}
        used = {(event.node, lane) for event, lane in zip(events, lanes, strict=True) if event.rank is None}
        networks = {place: thread for thread, place in enumerate(sorted(used), len(nodes))}
        for (node, lane), thread in networks.items():
            threads[node, thread] = f"network {lane + 1}" if lane else "network"
        for node in range(self._topology.nodes):
            first = nodes.index(node)
            yield _about(node, first, "process_name", name=f"node {node}")
            yield _about(node, first, "process_sort_index", sort_index=node)
        for (node, thread), name in sorted(threads.items()):
            yield _about(node, thread, "thread_name", name=name)
            yield _about(node, thread, "thread_sort_index", sort_index=thread)
        for event, lane in zip(events, lanes, strict=True):
            yield {
                "name": event.name,
                "cat": event.category,
                "ph": "X",
                "ts": event.start / 1000,
                "dur": (event.end - event.start) / 1000,
                "pid": event.node,
                "tid": event.rank if event.rank is not None else networks[event.node, lane],
                "args": event.args,
            }


def _lanes(events: list[Event]) -> list[int]:
    """For each event, in the order of their starts, the first lane of its node's network that is free."""
    free_from: dict[int, list[int]] = {}
    places = []
    for event in events:
        place = 0
        if event.rank is None:
            lanes = free_from.setdefault(event.node, [])
            place = next((i for i, free in enumerate(lanes) if free <= event.start), len(lanes))
            lanes[place : place + 1] = [event.end]
        places.append(place)
    return places


def _about(node: int, thread: int, what: str, **args: Any) -> dict[str, Any]:
    return {"name": what, "ph": "M", "pid": node, "tid": thread, "args": args}
