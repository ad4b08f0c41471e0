"""The few verbs with which a strategy talks to other ranks.

A strategy never calls `torch.distributed`: it is given a `Communicator`, so that one source runs over gloo,
over NCCL and in virtual time, and a test can count what it does. Implementations live in `runner/`.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from .topology import WORLD, Group, Topology

Channel = Literal["gradients", "parameters", "control"]
"""Each channel has process groups of its own: traffic of different kinds never shares an order."""

Link = Literal["intra", "inter"]
"""Between ranks of one node, and between nodes."""


class Operation(NamedTuple):
    """A collective, or one message of an exchange, as one rank calls it.

    A tuple: one is made in every call, and a tuple is made faster than a frozen dataclass.

    Args:
        tensor: what this rank gives. Of a message: what is sent or filled.
        output: where the result goes; `tensor` itself if the verb works in place.
        members: the ranks that take part, in the group's order. Of a message: sender and receiver.
        root: place of the source or destination in `members`.
        tag: pairs a message with its receive.
    """

    verb: str
    tensor: Tensor
    output: Tensor
    group: Group
    members: tuple[int, ...]
    channel: Channel
    async_op: bool = False
    root: int = 0
    tag: int = 0

    def __str__(self) -> str:
        return f"{self.verb} on {self.channel}/{self.group}"

    @property
    def payload_bytes(self) -> int:
        return self.tensor.numel() * self.tensor.element_size()


class Work(ABC):
    """A started operation."""

    @abstractmethod
    def wait(self) -> None:
        """Return when the result is in the tensor. May be called again."""

    @abstractmethod
    def is_completed(self) -> bool:
        """Whether `wait` would return at once; never blocks."""

    @abstractmethod
    def transfer_ns(self) -> int | None:
        """Nanoseconds from this rank's start of the operation to its completion; None while unknown."""


class Done(Work):
    """An operation with nothing to wait for."""

    def wait(self) -> None:
        return

    def is_completed(self) -> bool:
        return True

    def transfer_ns(self) -> int | None:
        return 0


class Communicator(ABC):
    """The link of one rank to the others.

    Reductions are sums, in place. `source` and `destination` count inside the group. Every member of a group
    calls the same verbs on it, per channel, in the same order; a rank that is not a member must not call.
    Groups of one rank return at once and count no traffic. With `async_op` a verb returns before the tensor
    holds the result, and the tensor belongs to the operation until `wait`.

    The verbs check what they are given and leave the rest to `_launch`, `_exchange` and
    `_barrier_in_memory`, which an implementation provides.

    Raises (all verbs with a group):
        RuntimeError: this rank is no member of the group.
        ValueError: a tensor is not contiguous, or the sizes do not fit.
    """

    topology: Topology
    rank: int
    host_waits: bool = True
    """Whether `Work.wait` holds up the host. False where a GPU's stream waits in its place: then times of
    the host's clock say nothing about waiting."""
    some_on_gpus: bool = False
    """Whether any rank's replica is on a GPU; alike on all ranks."""
    one_process: bool = False
    """Whether all ranks live in one process (virtual time): they share memory on whatever device computes."""

    @property
    def stop_possible(self) -> bool:
        """Whether a message may carry a stop request: else nobody has to read its flag from a device."""
        return True

    @property
    def local_rank(self) -> int:
        """This rank's place in its node."""
        return self.topology.local_ranks[self.rank]

    @property
    def node(self) -> int:
        return self.topology.node_of_rank[self.rank]

    def members(self, group: Group) -> tuple[int, ...]:
        """The ranks of `group`, seen from this rank."""
        return self.topology.members(group, self.rank)

    def all_reduce(
        self, tensor: Tensor, group: Group, *, channel: Channel = "parameters", async_op: bool = False
    ) -> Work:
        """Sum `tensor` over the group, result on all members."""
        return self._collective("all_reduce", tensor, tensor, group, channel, async_op)

    def reduce(
        self,
        tensor: Tensor,
        destination: int,
        group: Group,
        *,
        channel: Channel = "parameters",
        async_op: bool = False,
    ) -> Work:
        """Sum `tensor` over the group, result on `destination`.

        On other members the content is undefined after.
        """
        return self._collective("reduce", tensor, tensor, group, channel, async_op, destination)

    def reduce_scatter(
        self,
        output: Tensor,
        tensor: Tensor,
        group: Group,
        *,
        channel: Channel = "parameters",
        async_op: bool = False,
    ) -> Work:
        """Sum `tensor` [n·k] over n members and keep slice `[i·k, (i+1)·k)` in `output` [k] on member i."""
        return self._collective("reduce_scatter", tensor, output, group, channel, async_op)

    def broadcast(
        self,
        tensor: Tensor,
        source: int,
        group: Group,
        *,
        channel: Channel = "parameters",
        async_op: bool = False,
    ) -> Work:
        """Copy `tensor` from member `source` to all members."""
        return self._collective("broadcast", tensor, tensor, group, channel, async_op, source)

    def all_gather(
        self,
        output: Tensor,
        tensor: Tensor,
        group: Group,
        *,
        channel: Channel = "parameters",
        async_op: bool = False,
    ) -> Work:
        """Collect every member's `tensor` [k] into `output` [n·k], in member order, on all members."""
        return self._collective("all_gather", tensor, output, group, channel, async_op)

    def gather(self, vector: Tensor) -> Tensor:
        """All ranks' vectors [k] as [R, k], over the control channel; k must be equal on all ranks."""
        ranks = self.topology.ranks
        gathered = torch.empty(ranks * vector.numel(), dtype=vector.dtype)
        self.all_gather(gathered, vector, WORLD, channel="control").wait()
        return gathered.view(ranks, vector.numel())

    def exchange(self, sends: Mapping[int, Tensor], receives: Mapping[int, Tensor], tag: int) -> Work:
        """Send to and receive from single ranks of the world (keys) at once; returns before it is done.

        `tag` pairs a send with its receive; steps use rising tags. Received tensors are filled in place.
        """
        ends = [((self.rank, peer), tensor) for peer, tensor in sorted(sends.items())]
        ends += [((peer, self.rank), tensor) for peer, tensor in sorted(receives.items())]
        return self._exchange(
            [Operation("send", x, x, WORLD, pair, "parameters", True, 0, tag) for pair, x in ends]
        )

    def barrier(self, group: Group, *, channel: Channel = "control", in_memory: bool = False) -> None:
        """Return when all members have called, and see what they wrote to `shared` memory before.

        `in_memory`: through memory that the members share (they must be on one node), without messages.
        """
        if not in_memory:
            nothing = torch.empty(0)
            self._collective("barrier", nothing, nothing, group, channel, async_op=False)
            return
        members = self._checked_members("barrier", group)
        if len(members) > 1:
            self._barrier_in_memory(group, members)

    def write_stop_flag(self, flag: Tensor, number: float) -> None:
        """Set the element `flag` [] of a message, above 0 for a stop request."""
        flag.fill_(number)  # an assignment would wait for a GPU

    @abstractmethod
    def summing(self, link: Link) -> AbstractContextManager[None]:
        """Inside, this rank takes part in a sum over links of this class, or waits for others that do.

        Until all members have entered a call, standing still counts as time of that sum, whatever links the
        call itself uses; and so does this rank's own arithmetic. On one node all links are `intra`. For the
        thread that trains.
        """

    @abstractmethod
    def shared(self, numel: int, dtype: torch.dtype, group: Group) -> Tensor:
        """Zeroed memory [numel] that all members, on one node, read and write; `barrier` alone orders writes.

        Raises ValueError: the group spans nodes.
        """

    @abstractmethod
    def now(self) -> int:
        """This rank's monotonic clock, nanoseconds."""

    @abstractmethod
    def _launch(self, op: Operation) -> Work:
        """Start a collective of two or more members."""

    @abstractmethod
    def _exchange(self, messages: Sequence[Operation]) -> Work:
        """Start messages of the verb `send`: first those that this rank sends, then those it receives."""

    @abstractmethod
    def _barrier_in_memory(self, group: Group, members: tuple[int, ...]) -> None:
        """`barrier` through shared memory, of two or more members."""

    def _collective(
        self,
        verb: str,
        tensor: Tensor,
        output: Tensor,
        group: Group,
        channel: Channel,
        async_op: bool,
        root: int = 0,
    ) -> Work:
        members = self._checked_members(verb, group)
        if output is not tensor:
            whole, piece = (tensor, output) if verb == "reduce_scatter" else (output, tensor)
            if whole.numel() != len(members) * piece.numel():
                raise ValueError(
                    f"{verb} on {channel}/{group}: {whole.numel()} numbers are not {len(members)} pieces of "
                    f"{piece.numel()}"
                )
        if len(members) == 1:
            if output is not tensor:
                output.copy_(tensor)
            return Done()
        if not (tensor.is_contiguous() and output.is_contiguous()):
            raise ValueError(f"{verb} on {channel}/{group}: the tensor is not contiguous")
        work = self._launch(Operation(verb, tensor, output, group, members, channel, async_op, root))
        if not async_op:
            work.wait()
        return work

    def _checked_members(self, verb: str, group: Group) -> tuple[int, ...]:
        members = self.topology.members(group, self.rank)
        if self.rank not in members:
            raise RuntimeError(f"rank {self.rank} calls {verb} on {group}, of which it is no member")
        return members

    def _members_on_one_node(self, group: Group) -> tuple[int, ...]:
        """The members of a group that shares memory."""
        members = self._checked_members("shared", group)
        if self.topology.spans_nodes(members):
            raise ValueError(f"{group} spans nodes: memory is shared inside a node only")
        return members
