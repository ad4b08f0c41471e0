"""The communicator of virtual time: real sums, α–β durations. Also the fake of the unit tests."""

from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from ...strategies.communicator import Channel, Operation, Work
from ...strategies.topology import WORLD, Group
from ..communication.traffic import CountedCommunicator, Traffic
from .virtual_time import BucketSums, Collective, Simulator, rank_order_sum

FEW = 4  # numbers
CPU = torch.device("cpu")


class SimulatedWork(Work):
    """Started operations of one rank with their outputs; `wait` copies the results there."""

    def __init__(
        self, comm: "SimulatedCommunicator", parts: Sequence[tuple[Collective, Tensor | None]], key: int
    ) -> None:
        self._comm, self.parts, self._key = comm, list(parts), key
        self._launched = comm.now()

    def wait(self) -> None:
        for place, (operation, output) in enumerate(self.parts):
            self._wait_for(operation)
            result = operation.results.pop(self._comm.rank, None)  # the last one to take it lets it go
            if output is not None and result is not None:
                output.copy_(result)
            self.parts[place] = operation, None

    def _wait_for(self, operation: Collective) -> None:
        comm = self._comm
        entered = comm.now()
        comm.simulator.wait(comm.rank, operation)
        if comm.now() == entered:
            return
        # Until the last member entered, this rank waited for others.
        ready = entered if operation.ready is None else max(entered, min(comm.now(), operation.ready))
        if comm.simulator.in_helper:
            comm.helper_waits.append((entered, ready))
            return
        helper_waits, comm.helper_waits = comm.helper_waits, []
        waited_in_helpers = sum(max(0, stop - max(start, entered)) for start, stop in helper_waits)
        comm.blocked(self._key, entered, ready - entered + waited_in_helpers, operation.verb)

    def is_completed(self) -> bool:
        return all(self._comm.simulator.poll(operation) for operation, _ in self.parts)

    def transfer_ns(self) -> int | None:
        ends = [operation.end for operation, _ in self.parts]
        known = [end - self._launched for end in ends if end is not None]
        return max(known, default=0) if len(known) == len(ends) else None


class BucketWork(Work):
    """Started sums of buckets; `wait` leaves the sum of what all members gave in `total`."""

    def __init__(self, comm: "SimulatedCommunicator", sums: BucketSums, key: int) -> None:
        self._comm, self._sums, self._key = comm, sums, key
        self.total: Tensor | None = None

    def wait(self) -> None:
        comm, parts = self._comm, self._sums.parts
        entered = comm.now()
        for part in reversed(parts):  # mostly the last one ends last
            comm.simulator.wait(comm.rank, part)
        if comm.now() > entered:
            comm.blocked(self._key, entered, self._waited(entered), self._sums.verb)
        self.total = self._sums.total()

    def spans(self) -> list[tuple[int, int]]:
        """Start and end of each part, as far as is known now."""
        parts = self._sums.parts
        return [(p.start, p.end) for p in parts if p.start is not None and p.end is not None]

    def is_completed(self) -> bool:
        return all(self._comm.simulator.poll(part) for part in self._sums.parts)

    def transfer_ns(self) -> int | None:
        return None

    def _waited(self, entered: int) -> int:
        """How much of the time since `entered` others had not come to the part that was to be next."""
        waited, since = 0, entered
        for part in self._sums.parts:
            assert part.ready is not None, "all have ended"
            assert part.end is not None
            waited += max(0, part.ready - since)
            since = max(since, part.end)
        return waited


class SimulatedCommunicator(CountedCommunicator):
    """One rank's end of a `Simulator`; `shared` memory lies on `device`."""

    one_process = True

    def __init__(self, simulator: Simulator, rank: int, device: torch.device = CPU) -> None:
        self._device = device
        self.simulator, self.rank, self.topology = simulator, rank, simulator.topology
        self.scale = 1.0  # bytes that a byte of a vector counts as; counts and short messages are not scaled
        self.traffic = Traffic(self.topology, rank, stamps=False)
        self._shared: Counter[tuple[int, ...]] = Counter()
        # When helpers of this rank waited for other ranks to enter, as far as it is not counted yet.
        self.helper_waits: list[tuple[int, int]] = []
        # Collectives that helpers entered; who reads it clears it.
        self.helper_operations: list[Collective] = []

    @property
    def stop_possible(self) -> bool:
        """False until the first of all ranks, which live in this process, writes a request."""
        return self.simulator.stop_possible

    def write_stop_flag(self, flag: Tensor, number: float) -> None:
        self.simulator.stop_possible |= number > 0
        super().write_stop_flag(flag, number)

    def all_reduce_buckets(
        self, group: Group, give: Callable[[], Tensor], payloads: Sequence[int], times: Sequence[int]
    ) -> BucketWork:
        """Sum gradients in parts: part k, of `payloads[k]` bytes, is there at the time `times[k]` >= now.

        `give` makes this rank's vector of all parts; it is asked for when every member has come so far, and
        the same `total` is for all of them to read.
        """
        members = self.members(group)
        for payload in payloads:
            self.traffic.count("all_reduce", "gradients", members, payload)
        key = self.traffic.launch("gradients", members, self.now())
        sums = self.simulator.enter_buckets(self.rank, _key(members, key), members, give, payloads, times)
        return BucketWork(self, sums, key)

    def shared(self, numel: int, dtype: torch.dtype, group: Group) -> Tensor:
        members = self._members_on_one_node(group)
        self._shared[members] += 1
        key, memory = (members, self._shared[members]), self.simulator.shared
        if key not in memory:
            memory[key] = torch.zeros(numel, dtype=dtype, device=self._device)
        return memory[key]

    def start_helper(self, body: Callable[[], None]) -> Work:
        """Begin `body` on a clock of its own, like a helper thread; all ranks do so in the same order."""
        key = self.traffic.launch("helper", self.members(WORLD), self.now())
        return SimulatedWork(self, [(self.simulator.start_helper(self.rank, body), None)], key)

    def blocked(self, key: int, entered: int, waited: int, verb: str) -> None:
        """Count that this rank waited from `entered` to now, `waited` of it for others to enter."""
        self.traffic.block(key, entered, self.now(), waited)
        if self.simulator.timeline is not None:
            self.simulator.timeline.blocked(self.rank, entered, self.now(), verb)

    def now(self) -> int:
        return self.simulator.now

    def _launch(self, op: Operation) -> Work:
        payload = self._bytes(op.tensor, op.channel)
        self.traffic.count(op.verb, op.channel, op.members, payload, op.root)
        key = self.traffic.launch(op.channel, op.members, self.now())
        # Other ranks read the tensor as it is when the last one enters: as in a real transfer, it must not be
        # written meanwhile.
        operation = self.simulator.enter(
            self.rank,
            _key(op.members, key),
            op.verb,
            op.members,
            op.tensor,
            payload,
            partial(_results, op),
            op.channel,
        )
        if self.simulator.in_helper:
            self.helper_operations.append(operation)
        return SimulatedWork(self, [(operation, op.output)], key)

    def _exchange(self, messages: Sequence[Operation]) -> Work:
        return SimulatedWork(self, [self._message(message) for message in messages], -1)

    def _message(self, op: Operation) -> tuple[Collective, Tensor | None]:
        payload = self._bytes(op.tensor, op.channel)
        is_sender = self.rank == op.members[0]
        if is_sender:
            self.traffic.count("send", op.channel, op.members, payload)
        key: Any = ("message", *op.members, op.tag)
        operation = self.simulator.enter(
            self.rank, key, "send", op.members, op.tensor, payload, partial(_results, op)
        )
        return operation, None if is_sender else op.output

    def _barrier_in_memory(self, group: Group, members: tuple[int, ...]) -> None:
        self._members_on_one_node(group)
        # Nothing is sent: a verb of its own, neither a call nor payload.
        self.traffic.mark("shared.barrier")
        key = self.traffic.launch("shared", members, self.now())
        operation = self.simulator.enter(
            self.rank, _key(members, key), "barrier", members, None, 0, lambda entered: {}, "shared"
        )
        SimulatedWork(self, [(operation, None)], key).wait()

    def _bytes(self, tensor: Tensor, channel: Channel) -> int:
        """The bytes that the tensor counts as: vectors of the model and their codes (uint8) are scaled."""
        size = tensor.numel() * tensor.element_size()
        of_model = tensor.is_floating_point() or tensor.dtype == torch.uint8
        is_itself = channel == "control" or not of_model or tensor.numel() < FEW
        return size if is_itself else round(size * self.scale)


def _key(members: tuple[int, ...], key: int) -> tuple[int, ...]:
    """Identifies a collective under way; without all members, of which there may be thousands."""
    return key, members[0], members[-1], len(members)


def _results(op: Operation, entered: dict[int, Tensor]) -> dict[int, Tensor]:
    """Each member's result of what all members entered; members without one are left out."""
    members = op.members
    match op.verb:
        case "all_reduce":
            return dict.fromkeys(entered, rank_order_sum(entered))
        case "reduce":
            return {members[op.root]: rank_order_sum(entered)}
        case "reduce_scatter":
            return dict(zip(members, rank_order_sum(entered).chunk(len(members)), strict=True))
        case "broadcast":
            return dict.fromkeys(entered, entered[members[op.root]].clone())
        case "all_gather":
            return dict.fromkeys(entered, torch.cat([entered[member] for member in members]))
        case "send":
            return {members[1]: entered[members[0]].clone()}
        case _:
            return {}
