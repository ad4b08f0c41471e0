"""The communicator of virtual time: real sums, α–β durations. Also the fake of the unit tests."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from ...strategies.communicator import Channel, Done, Work
from ...strategies.topology import WORLD, Group
from ..communication.traffic import CountedCommunicator, Traffic
from .simulator import Operation, Simulator, Train, rank_order_sum

FEW = 4  # numbers


class SimulatedWork(Work):
    """A started operation of one rank; the result is delivered into the rank's tensor by `wait`."""

    def __init__(
        self, comm: "SimulatedCommunicator", operation: Operation, output: Tensor | None, key: int
    ) -> None:
        self._comm, self._operation, self._output, self._key = comm, operation, output, key
        self._launched = comm.now()

    def wait(self) -> None:
        comm = self._comm
        entered = comm.now()
        comm.simulator.wait(comm.rank, self._operation)
        if comm.now() > entered and comm.simulator.is_aside:
            comm.waited_aside.append(self._waited(entered))
        elif comm.now() > entered:
            start, stop = self._waited(entered)
            waited = max(0, stop - start) + comm.waited_aside_since(entered)
            comm.traffic.block(self._key, entered, comm.now(), waited)
            if comm.simulator.timeline is not None:
                comm.simulator.timeline.blocked(comm.rank, entered, comm.now(), self._operation.verb)
        if self._output is not None:
            result = self._operation.results.get(comm.rank)
            if result is not None:
                self._output.copy_(result)
            self._output = None

    def _waited(self, entered: int) -> tuple[int, int]:
        """From `entered`, when the rank waited for others to enter; empty if all had."""
        ready = self._operation.ready
        return entered, entered if ready is None else max(entered, min(self._comm.now(), ready))

    def is_completed(self) -> bool:
        return self._comm.simulator.poll(self._operation)

    def transfer_ns(self) -> int | None:
        return None if self._operation.end is None else self._operation.end - self._launched


class TrainWork(Work):
    """A started train of sums, of which `wait` leaves the sum of what all members gave in `total`."""

    def __init__(self, comm: "SimulatedCommunicator", train: Train, key: int) -> None:
        self._comm, self._train, self._key = comm, train, key
        self.total: Tensor | None = None

    def wait(self) -> None:
        comm, parts = self._comm, self._train.parts
        simulator, entered = comm.simulator, comm.now()
        for part in reversed(parts):  # mostly the last one ends last
            simulator.wait(comm.rank, part)
        if comm.now() > entered:
            comm.traffic.block(self._key, entered, comm.now(), self._waited(entered))
            if simulator.timeline is not None:
                simulator.timeline.blocked(comm.rank, entered, comm.now(), self._train.verb)
        self.total = self._train.total()

    def spans(self) -> list[tuple[int, int]]:
        """From when to when parts are under way, as far as is known now."""
        parts = self._train.parts
        return [(p.start, p.end) for p in parts if p.start is not None and p.end is not None]

    def is_completed(self) -> bool:
        return all(self._comm.simulator.poll(part) for part in self._train.parts)

    def transfer_ns(self) -> int | None:
        return None

    def _waited(self, entered: int) -> int:
        """How much of the time since `entered` others had not come to the part that was to be next."""
        waited, since = 0, entered
        for part in self._train.parts:
            assert part.ready is not None, "all have ended"
            assert part.end is not None
            waited += max(0, part.ready - since)
            since = max(since, part.end)
        return waited


class Exchange(Work):
    """All messages of one `exchange`."""

    def __init__(self, works: list[SimulatedWork]) -> None:
        self._works = works

    def wait(self) -> None:
        for work in self._works:
            work.wait()

    def is_completed(self) -> bool:
        return all(work.is_completed() for work in self._works)

    def transfer_ns(self) -> int | None:
        durations = [work.transfer_ns() for work in self._works]
        known = [duration for duration in durations if duration is not None]
        return max(known, default=0) if len(known) == len(durations) else None


class SimulatedCommunicator(CountedCommunicator):
    """One rank's end of a `Simulator`."""

    def __init__(self, simulator: Simulator, rank: int) -> None:
        self.simulator, self.rank, self.topology = simulator, rank, simulator.topology
        self.scale = 1.0  # bytes that a byte of a vector stands for; counts and short messages are themselves
        self.traffic = Traffic(self.topology, rank, stamps=False)
        self._shared: Counter[tuple[int, ...]] = Counter()
        # When bodies beside this rank waited for other ranks to enter, and this rank has not yet heard of it.
        self.waited_aside: list[tuple[int, int]] = []
        # Collectives that such bodies entered; who reads it clears it.
        self.operations_aside: list[Operation] = []

    def all_reduce(
        self, tensor: Tensor, group: Group, *, channel: Channel = "parameters", async_op: bool = False
    ) -> Work:
        def combine(entered: dict[int, Tensor]) -> dict[int, Tensor]:
            total = rank_order_sum(entered)
            return dict.fromkeys(entered, total)

        return self._collective("all_reduce", tensor, tensor, group, channel, async_op, combine)

    def reduce(
        self,
        tensor: Tensor,
        destination: int,
        group: Group,
        *,
        channel: Channel = "parameters",
        async_op: bool = False,
    ) -> Work:
        owner = self.members(group)[destination]

        def combine(entered: dict[int, Tensor]) -> dict[int, Tensor]:
            return {owner: rank_order_sum(entered)}

        return self._collective("reduce", tensor, tensor, group, channel, async_op, combine, destination)

    def reduce_scatter(
        self,
        output: Tensor,
        tensor: Tensor,
        group: Group,
        *,
        channel: Channel = "parameters",
        async_op: bool = False,
    ) -> Work:
        members = self.members(group)
        if len(members) == 1:
            output.copy_(tensor)

        def combine(entered: dict[int, Tensor]) -> dict[int, Tensor]:
            return dict(zip(members, rank_order_sum(entered).chunk(len(members)), strict=True))

        return self._collective("reduce_scatter", tensor, output, group, channel, async_op, combine)

    def broadcast(
        self,
        tensor: Tensor,
        source: int,
        group: Group,
        *,
        channel: Channel = "parameters",
        async_op: bool = False,
    ) -> Work:
        owner = self.members(group)[source]

        def combine(entered: dict[int, Tensor]) -> dict[int, Tensor]:
            return dict.fromkeys(entered, entered[owner].clone())

        return self._collective("broadcast", tensor, tensor, group, channel, async_op, combine, source)

    def all_gather(
        self,
        output: Tensor,
        tensor: Tensor,
        group: Group,
        *,
        channel: Channel = "parameters",
        async_op: bool = False,
    ) -> Work:
        members = self.members(group)
        if len(members) == 1:
            output.copy_(tensor)

        def combine(entered: dict[int, Tensor]) -> dict[int, Tensor]:
            return dict.fromkeys(entered, torch.cat([entered[member] for member in members]))

        return self._collective("all_gather", tensor, output, group, channel, async_op, combine)

    def all_reduce_train(
        self, group: Group, give: Callable[[], Tensor], payloads: Sequence[int], times: Sequence[int]
    ) -> TrainWork:
        """Sum gradients in parts: part k, of `payloads[k]` bytes, is there at the time `times[k]` >= now.

        `give` makes this rank's vector of all parts; it is asked for when every member has come so far, and
        the same `total` is for all of them to read.
        """
        members = self.members(group)
        for payload in payloads:
            self.traffic.count("all_reduce", "gradients", members, payload)
        key = self.traffic.launch("gradients", members, self.now())
        train = self.simulator.enter_train(
            self.rank, _key(members, key), members, give, payloads, times, "gradients"
        )
        return TrainWork(self, train, key)

    def exchange(self, sends: Mapping[int, Tensor], receives: Mapping[int, Tensor], tag: int) -> Work:
        works = [self._message(self.rank, peer, tensor, tag) for peer, tensor in sorted(sends.items())]
        works += [self._message(peer, self.rank, tensor, tag) for peer, tensor in sorted(receives.items())]
        return Exchange(works)

    def barrier(self, group: Group, *, channel: Channel = "control", in_memory: bool = False) -> None:
        if not in_memory:
            self._collective("barrier", torch.empty(0), None, group, channel, False, _nothing)
            return
        members = self._inside_a_node(group)
        if len(members) > 1:
            # Nothing is sent: a verb of its own, neither a call nor payload.
            self.traffic.mark("shared.barrier")
            key = self.traffic.launch("shared", members, self.now())
            nothing = torch.empty(0)
            operation = self.simulator.enter(
                self.rank, _key(members, key), "barrier", members, nothing, 0, _nothing, "shared"
            )
            SimulatedWork(self, operation, None, key).wait()

    def shared(self, numel: int, dtype: torch.dtype, group: Group) -> Tensor:
        members = self._inside_a_node(group)
        self._shared[members] += 1
        key = (members, self._shared[members])
        return self.simulator.shared.setdefault(key, torch.zeros(numel, dtype=dtype))

    def aside(self, body: Callable[[], None]) -> Work:
        """Begin `body` on a clock of its own beside the rank's; all ranks do so in the same order."""
        key = self.traffic.launch("aside", self.members(WORLD), self.now())
        return SimulatedWork(self, self.simulator.aside(self.rank, body), None, key)

    def waited_aside_since(self, entered: int) -> int:
        """How much of the time from `entered` to now bodies beside this rank waited for others."""
        waits, self.waited_aside = self.waited_aside, []
        return sum(max(0, stop - max(start, entered)) for start, stop in waits)

    def now(self) -> int:
        return self.simulator.now

    def _bytes(self, tensor: Tensor, channel: Channel) -> int:
        """What the tensor counts as: a vector of the model or its codes (uint8) as a larger model's."""
        size = tensor.numel() * tensor.element_size()
        of_model = tensor.is_floating_point() or tensor.dtype == torch.uint8
        is_itself = channel == "control" or not of_model or tensor.numel() < FEW
        return size if is_itself else round(size * self.scale)

    def _inside_a_node(self, group: Group) -> tuple[int, ...]:
        members = self.members(group)
        if self.rank not in members:
            raise RuntimeError(f"rank {self.rank} is no member of {group}")
        if self.topology.spans_nodes(members):
            raise ValueError(f"{group} spans nodes: memory is shared inside a node only")
        return members

    def _collective(
        self,
        verb: str,
        tensor: Tensor,
        output: Tensor | None,
        group: Group,
        channel: Channel,
        async_op: bool,
        combine: Callable[[dict[int, Tensor]], dict[int, Tensor]],
        source: int = 0,
    ) -> Work:
        members = self.members(group)
        if self.rank not in members:
            raise RuntimeError(f"rank {self.rank} calls {verb} on {group}, of which it is no member")
        if len(members) == 1:
            return Done()
        payload = self._bytes(tensor, channel)
        self.traffic.count(verb, channel, members, payload, source)
        key = self.traffic.launch(channel, members, self.now())
        # What other ranks read is the tensor as it is when the last one enters: like a real transfer, it must
        # not be written meanwhile.
        operation = self.simulator.enter(
            self.rank, _key(members, key), verb, members, tensor, payload, combine, channel
        )
        if self.simulator.is_aside:
            self.operations_aside.append(operation)
        work = SimulatedWork(self, operation, output, key)
        if not async_op:
            work.wait()
        return work

    def _message(self, source: int, destination: int, tensor: Tensor, tag: int) -> SimulatedWork:
        payload = self._bytes(tensor, "parameters")
        members = (source, destination)
        sending = self.rank == source
        if sending:
            self.traffic.count("send", "parameters", members, payload)
        key: Any = ("message", source, destination, tag)

        def combine(entered: dict[int, Tensor]) -> dict[int, Tensor]:
            return {destination: entered[source].clone()}

        operation = self.simulator.enter(self.rank, key, "send", members, tensor, payload, combine)
        return SimulatedWork(self, operation, None if sending else tensor, -1)


def _key(members: tuple[int, ...], key: int) -> tuple[int, ...]:
    """What tells a collective from all others under way; not all members, of which there may be thousands."""
    return key, members[0], members[-1], len(members)


def _nothing(entered: dict[int, Tensor]) -> dict[int, Tensor]:
    return {}
