"""Real processes of one machine on modelled links: an operation ends when it would on the cluster's network.

The data travel as they always do; an operation is then held back until α–β time has passed, by the formulas
of virtual time (`link_costs`): it begins when the last member has come and the links it holds are free,

    begin = max(now at the last arrival, busy-until of its links),   end = begin + cost,   busy-until = end,

and every member sees it completed at the later of `end` and of its real completion. A broadcast begins when
its source comes. The clocks of the links are shared by all ranks, in memory that they all map: one machine,
any backend. A rank waits where it would wait on the real network and nowhere else, except that on a GPU the
host stands still where its stream would.
"""

import fcntl
import mmap
import os
import threading
import time
from collections import Counter
from collections.abc import Callable, Hashable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import product
from typing import Any

import torch

from ...strategies.communicator import Operation, Work
from ...strategies.topology import WORLD, Topology
from ..machine import shared_memory
from .link_costs import Network
from .torch_communicator import Summed, TorchCommunicator, TorchWork

SLOTS = 512  # operations of a group under way at once, at most
_WORDS = 3  # of a slot: number of the operation + 1, members that have come, end

Line = tuple[str, tuple[int, ...]]
"""A channel and the members of a group: their operations have the same order on all of them."""


class ModelledCommunicator(TorchCommunicator):
    """A wrapper around the communicator `comm`, whose operations end when they would on `network`.

    All ranks make it together, on one machine. It takes over the state of `comm`, which is not used after.
    """

    def __init__(self, comm: TorchCommunicator, network: Network) -> None:
        vars(self).update(vars(comm))
        lines, descriptor, address = self.lines(), -1, ""
        if self.rank == 0:
            descriptor, address = make(self.topology, lines)
        self._clocks = LinkClocks(comm.broadcast_text(address, WORLD), self.topology, network, lines)
        comm.barrier(WORLD)
        if self.rank == 0:
            os.close(descriptor)
        self._completions = ThreadPoolExecutor(1, thread_name_prefix="modelled network")

    def close(self) -> None:
        super().close()
        self._completions.shutdown()
        self._clocks.close()

    @property
    def _waits_on_device(self) -> bool:
        return False

    def _launch(self, op: Operation) -> Work:
        held = self._enter(op, op.channel)
        work = super()._launch(op)
        assert isinstance(work, TorchWork), "the host waits for every operation"
        return HeldWork(self, work, held)

    def _start_message(self, op: Operation) -> Callable[[], None]:
        held = self._enter(op, "messages")
        wait = super()._start_message(op)

        def wait_until_end() -> None:
            wait()
            self.synchronise()
            held.wait()

        return wait_until_end

    def _future_of(self, op: Operation) -> Callable[[Any], Summed]:
        held = self._enter(op, op.channel)
        return lambda work: self._deferred(work, held)

    def _enter(self, op: Operation, channel: str) -> "Held":
        return self._clocks.enter(op.verb, channel, op.members, op.payload_bytes, self.rank, op.root)

    def _deferred(self, work: Any, held: "Held") -> Summed:
        """The sum of `work`, completed when the modelled network has carried it."""
        on_gpu = self.device.type == "cuda"
        summed: Summed = torch.futures.Future(devices=[self.device] if on_gpu else None)

        def complete(value: torch.Tensor, done: "torch.cuda.Event | None") -> None:
            held.wait()
            if done is not None:
                done.synchronize()
            summed.set_result(value)

        def carried(future: "torch.futures.Future[list[torch.Tensor]]") -> None:
            try:
                value = future.value()[0]
            except RuntimeError as error:  # another rank is gone
                summed.set_exception(error)  # pyright: ignore[reportArgumentType] (PyTorch's stub names its result)
                return
            done = None
            if on_gpu:  # PyTorch calls us when the sum is launched, on a stream that waits for it
                done = torch.cuda.Event()
                done.record()
            self._completions.submit(complete, value, done)

        work.get_future().add_done_callback(carried)
        return summed


class HeldWork(Work):
    """A collective that is completed when its data are here and the modelled network has carried it."""

    def __init__(self, comm: TorchCommunicator, work: TorchWork, held: "Held") -> None:
        self._comm, self._work, self.held = comm, work, held
        self._waited = False

    def wait(self) -> None:
        if self._waited:
            return
        self._work.wait()
        with self._comm.waiting_in(self._work.name, self._work.key):
            self._comm.synchronise()
            self.held.wait()
        self._waited = True

    def is_completed(self) -> bool:
        return self._work.is_completed() and self.held.over()

    def transfer_ns(self) -> int | None:
        took = self._work.transfer_ns()
        if took is None or not self.held.over():
            return None
        return max(took, (self.held.end_ns() or 0) - self._work.launched)


class LinkClocks:
    """The clocks of all modelled links, one object per rank. Lines and links are numbered alike on all ranks.

    address: of the memory that `make` made; it may go once all ranks have taken it. lines: of collectives;
    pairs for messages are added.
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
        """This rank enters its next operation on that line, now. `source`: place of a broadcast's source.

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
        """When the operation ends, by the machine's monotonic clock; None while unknown."""
        words = self._words
        end = words[slot + 2]
        # The slot has been used again since: this operation ended long ago.
        return 1 if words[slot] != number + 1 else end or None

    def close(self) -> None:
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
    """An operation that is held back. `alone_ns`: when it would end without waiting for other ranks."""

    clocks: LinkClocks
    slot: int
    number: int
    alone_ns: int

    def end_ns(self) -> int | None:
        """When it ends on the modelled network; None until all members have entered."""
        return self.clocks.end_of(self.slot, self.number)

    def over(self) -> bool:
        end = self.end_ns()
        return end is not None and time.monotonic_ns() >= end

    def wait(self) -> None:
        """Return at its end; call it once the real operation is completed here."""
        # Some real operations return before all have joined (on a reduce's leaves): then the rank waits as
        # long as its own transfer takes.
        end = self.end_ns() or self.alone_ns
        while (rest := end - time.monotonic_ns()) > 0:
            time.sleep(rest / 1e9)


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
    """Every link that a cost can name (`link_costs.directed`), in order: cards of nodes, ranks, nodes."""
    cards = [(node, card) for node in range(topology.nodes) for card in range(max(topology.ranks_of_nodes))]
    ranks = [("rank", rank) for rank in range(topology.ranks)]
    ends: list[Hashable] = [*cards, *ranks, *range(topology.nodes)]
    return [(end, way) for end in ends for way in ("out", "in")]
