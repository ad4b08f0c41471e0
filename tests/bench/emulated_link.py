"""Whether emulated links have the rate that was asked for: all-reduces over gloo after pauses of all lengths.

A link is right if long messages take as long as asked, and no message is faster: what passes unshaped after a
pause would favour strategies that pause. What a message costs without a link (waking up, the machine itself)
is measured beside it, over interfaces that are never shaped; messages that are short against it say nothing.
"""

import math
import multiprocessing
import os
import statistics
import time
import traceback
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from itertools import product
from multiprocessing.connection import Connection
from typing import cast

import torch

from daso_bench.strategies.topology import WORLD, Topology
from daso_bench.runner import local
from daso_bench.runner.emulated.ability import impossible
from daso_bench.runner.emulated.awake import Awake
from daso_bench.runner.emulated.namespaces import NodeEntry, enter
from daso_bench.runner.emulated.nodes import Nodes
from daso_bench.runner.forkserver_guard import FORKSERVER_VARIABLE, die_with_parent
from daso_bench.runner.hardware import LinkConfig
from daso_bench.runner.torch_communicator import TorchCommunicator, connect
from figures import Figure

KIB, MIB = 2**10, 2**20
ARRANGEMENTS = ((1, 1), (2, 2))
RATES_GBIT = (0.05, 0.2, 1.0)
PAUSES_MS = (0, 20, 100)
SIZES = (256 * KIB, MIB, 4 * MIB, 16 * MIB)
REPEATS, LONGEST_S = 5, 8.0
OFF, TOO_FAST = 0.05, 1.10
FLOORS = 20  # a message that lasts so many floors is long
PORT, UNSHAPED_PORT = 29500, 29501  # of network namespaces that nobody else is in
PATIENCE_S = 120.0  # for one word from a rank


@dataclass(frozen=True, kw_only=True)
class Message:
    """All-reduces of `size` bytes after a pause: the median of their bus bandwidths over the rate asked for.

    `asked_s`: how long a ring's part of it takes on the link.
    """

    size: int
    pause_ms: int
    asked_s: float
    over_asked: float


@dataclass(frozen=True, kw_only=True)
class Links:
    """What was measured on one cluster. `floor_s`: of a small all-reduce over unshaped interfaces."""

    floor_s: float
    messages: list[Message]

    @property
    def long(self) -> list[Message]:
        """Those that the floor cannot spoil."""
        return [message for message in self.messages if message.asked_s >= FLOORS * self.floor_s]


def measure() -> list[Figure]:
    """Per cluster and rate: the worst deviation of a long message, and the fastest message."""
    if reason := impossible():
        return [Figure("emulated_link", math.nan, None, reason)]
    figures: list[Figure] = []
    for ranks_of_nodes, rate_gbit in product(ARRANGEMENTS, RATES_GBIT):
        links = achieved(ranks_of_nodes, rate_gbit)
        name = f"emulated_{len(ranks_of_nodes)}x{ranks_of_nodes[0]}_{rate_gbit:g}gbit"
        worst = max(links.long, key=lambda message: abs(message.over_asked - 1), default=None)
        fastest = max(links.messages, key=lambda message: message.over_asked)
        floor = f"floor {links.floor_s * 1000:.1f} ms"
        # No message may be long against a large floor: then there is nothing to hold against the limit.
        off = math.nan if worst is None else abs(worst.over_asked - 1)
        shown = f"no message of {FLOORS} floors" if worst is None else told(worst)
        figures += [
            Figure(f"{name}_off", off, None if worst is None else OFF, f"{shown}; {floor}"),
            Figure(f"{name}_fastest", fastest.over_asked, TOO_FAST, f"{told(fastest)}; {floor}"),
        ]
    return figures


def told(message: Message) -> str:
    """A message in words."""
    return f"{message.over_asked:.3f} of asked, {message.size / MIB:g} MiB after {message.pause_ms} ms"


def achieved(
    ranks_of_nodes: Sequence[int],
    rate_gbit: float,
    *,
    sizes: Sequence[int] = SIZES,
    pauses_ms: Sequence[int] = PAUSES_MS,
    repeats: int = REPEATS,
) -> Links:
    """Measure all-reduces of so many bytes after such pauses, but for those of more than LONGEST_S.

    Raises MachineError: no nodes here. RuntimeError: a rank failed.
    """
    topology = Topology.of(tuple(ranks_of_nodes))
    part = 2 * (topology.ranks - 1) / topology.ranks
    inter = LinkConfig(rate_gbit=rate_gbit)
    asked = {size: part * size / inter.bytes_per_s for size in sizes}
    wanted = [(size, pause) for size in sizes if asked[size] <= LONGEST_S for pause in pauses_ms]
    with (
        _awake(),
        Nodes(ranks_of_nodes, inter) as nodes,
        _ranks(topology, nodes.entries, wanted, repeats) as lines,
    ):
        floor_s = statistics.median(_together(lines))
        messages = [
            Message(
                size=size,
                pause_ms=pause,
                asked_s=asked[size],
                over_asked=statistics.median(asked[size] / took for took in _together(lines)),
            )
            for size, pause in wanted
        ]
    return Links(floor_s=floor_s, messages=messages)


@contextmanager
def _awake() -> Iterator[None]:
    """Cores kept awake, as `launcher.keep_awake` does in a run."""
    programs = Awake()
    try:
        yield
    finally:
        programs.end()


@contextmanager
def _ranks(
    topology: Topology, entries: Sequence[NodeEntry], wanted: list[tuple[int, int]], repeats: int
) -> Iterator[list[Connection]]:
    """Processes of the forkserver, one per rank, each in its node; gone afterwards."""
    local.warm()
    context = multiprocessing.get_context("forkserver")
    with ExitStack() as open_ones:
        lines: list[Connection] = []
        for rank in range(topology.ranks):
            ours, theirs = context.Pipe()
            open_ones.callback(ours.close)
            process = context.Process(
                target=_rank, args=(topology.ranks_of_nodes, rank, list(entries), wanted, repeats, theirs)
            )
            with local.no_main():
                process.start()
            theirs.close()
            open_ones.callback(process.join)
            open_ones.callback(process.kill)
            lines.append(cast(Connection, ours))  # on Windows it would be another one
        yield lines


def _together(lines: Sequence[Connection]) -> list[float]:
    """Seconds of each all-reduce, from the moment that all had called it until all had it."""
    said: list[list[tuple[float, float]]] = []
    for rank, line in enumerate(lines):
        try:
            word = line.recv() if line.poll(PATIENCE_S) else "says nothing"
        except EOFError:
            word = "has ended"
        if isinstance(word, str):
            raise RuntimeError(f"rank {rank}: {word}")
        said.append(word)
    return [max(end for _, end in each) - max(began for began, _ in each) for each in zip(*said, strict=True)]


def _rank(
    ranks_of_nodes: tuple[int, ...],
    rank: int,
    entries: list[NodeEntry],
    wanted: list[tuple[int, int]],
    repeats: int,
    line: Connection,
) -> None:
    """A rank of the measurement; says the times of the floor, then those of each message."""
    die_with_parent(int(os.environ[FORKSERVER_VARIABLE]))
    try:
        torch.set_num_threads(1)
        topology = Topology.of(ranks_of_nodes)
        entry, first = entries[topology.node_of_rank[rank]], entries[0]
        enter(entry)
        comm = _meet(topology, rank, entry.unshaped_interface, first.unshaped_address, UNSHAPED_PORT)
        line.send(_times(comm, 64 * KIB, 20, 2 * repeats))
        comm.close()
        comm = _meet(topology, rank, entry.interface, first.address, PORT)
        comm.all_reduce(torch.zeros(MIB // 4), WORLD).wait()  # TCP finds its windows
        for size, pause_ms in wanted:
            line.send(_times(comm, size, pause_ms, repeats))
        comm.close()
    except Exception:
        line.send(traceback.format_exc())


def _meet(topology: Topology, rank: int, interface: str, host: str, port: int) -> TorchCommunicator:
    os.environ["GLOO_SOCKET_IFNAME"] = interface
    return connect(
        topology,
        rank,
        host=host,
        port=port,
        listener_fd=None,
        device=torch.device("cpu"),
        timeout_s=PATIENCE_S,
    )


def _times(comm: TorchCommunicator, size: int, pause_ms: int, repeats: int) -> list[tuple[float, float]]:
    """When this rank began and had each of its all-reduces of `size` bytes, on the machine's clock."""
    tensor = torch.zeros(size // 4)
    times: list[tuple[float, float]] = []
    for _ in range(repeats):
        comm.barrier(WORLD)
        time.sleep(pause_ms / 1000)
        began = time.monotonic()
        comm.all_reduce(tensor, WORLD).wait()
        times.append((began, time.monotonic()))
    return times
