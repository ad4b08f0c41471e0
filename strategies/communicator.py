"""The few verbs with which a strategy talks to other ranks.

A strategy never calls `torch.distributed`: it is handed a `Communicator`, so that one source runs over gloo,
over NCCL and in virtual time, and a test can count what it does. Implementations live in `runner/`.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from contextlib import AbstractContextManager
from typing import Literal

import torch
from torch import Tensor

from .topology import Group, Topology

Channel = Literal["gradients", "parameters", "control"]
"""Each channel has process groups of its own: traffic of different kinds never shares an order."""

Link = Literal["intra", "inter"]
"""Between ranks of one node, and between nodes."""


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
    """

    topology: Topology
    rank: int
    host_waits: bool = True
    """Whether `Work.wait` holds up the host. False where a GPU's stream waits in its place: what the host's
    clock says of waiting means nothing then."""
    some_on_gpus: bool = False
    """Whether any rank's replica is on a GPU; alike on all ranks."""

    @property
    def local_rank(self) -> int:
        """This rank's place in its node."""
        return self.topology.local_ranks[self.rank]

    @property
    def node(self) -> int:
        """This rank's node."""
        return self.topology.node_of_rank[self.rank]

    def members(self, group: Group) -> tuple[int, ...]:
        """The ranks of `group`, seen from this rank."""
        return self.topology.members(group, self.rank)

    @abstractmethod
    def all_reduce(
        self, tensor: Tensor, group: Group, *, channel: Channel = "parameters", async_op: bool = False
    ) -> Work:
        """Sum `tensor` over the group, result on all members."""

    @abstractmethod
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

    @abstractmethod
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

    @abstractmethod
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

    @abstractmethod
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

    @abstractmethod
    def exchange(self, sends: Mapping[int, Tensor], receives: Mapping[int, Tensor], tag: int) -> Work:
        """Send to and receive from single ranks of the world (keys) at once; returns before it is done.

        `tag` pairs a send with its receive; steps use rising tags. Received tensors are filled in place.
        """

    @abstractmethod
    def barrier(self, group: Group, *, channel: Channel = "control", in_memory: bool = False) -> None:
        """Return when all members have called, and see what they wrote to `shared` memory before.

        `in_memory`: through memory that the members share (they must be on one node), without messages.
        """

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

        Raises:
            ValueError: the group spans nodes.
        """

    @abstractmethod
    def now(self) -> int:
        """This rank's monotonic clock, nanoseconds."""
