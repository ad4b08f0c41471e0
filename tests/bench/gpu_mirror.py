"""A world of several ranks of which only this one is there: the others are taken to do what it does.

NCCL refuses two ranks on one GPU, so on one GPU its operations would never run. Here each group of the world
is a group of NCCL with this rank alone: operations are really launched, DDP's hook is called, streams and
events are those of a real run. What the others would have added is put in before: a sum over n ranks is n
times this rank's own, and all that is gathered is this rank's. Messages between two ranks are copies; NCCL
has none from a rank to itself. Where ranks hold pieces of their own (`sliced`, the turns of `daso`), what is
learnt means nothing: it is the operations that are tried.
"""

from collections.abc import Mapping

import torch
from torch import Tensor

from daso_bench.strategies.communicator import Channel, Work
from daso_bench.strategies.topology import LEADERS, NODE, WORLD, Group, Topology
from daso_bench.runner.simulated_communicator import Done
from daso_bench.runner.torch_communicator import TorchCommunicator, dist
from daso_bench.runner.traffic import Traffic

CHANNELS: tuple[Channel, ...] = ("gradients", "parameters", "control")


class Mirror(TorchCommunicator):
    """Rank 0 of `topology`, from the communicator of a rank that is `alone`."""

    def __init__(self, alone: TorchCommunicator, topology: Topology) -> None:
        vars(self).update(vars(alone))
        self.topology, self.traffic = topology, Traffic(topology, 0)
        for channel in CHANNELS:
            backend = "gloo" if channel == "control" else self.backend
            for group in (WORLD, NODE, LEADERS):
                if len(self.members(group)) > 1:
                    made = dist.new_group([0], backend=backend)
                    assert isinstance(made, dist.ProcessGroup), "this rank is a member"
                    self._groups.setdefault((channel, self.members(group)), made)
        self.warm_up()

    def all_reduce(
        self, tensor: Tensor, group: Group, *, channel: Channel = "parameters", async_op: bool = False
    ) -> Work:
        tensor.mul_(self._size(group))
        return super().all_reduce(tensor, group, channel=channel, async_op=async_op)

    def start_sum(self, tensor: Tensor, group: Group) -> "torch.futures.Future[Tensor]":
        return super().start_sum(tensor.mul_(self._size(group)), group)

    def reduce(
        self,
        tensor: Tensor,
        destination: int,
        group: Group,
        *,
        channel: Channel = "parameters",
        async_op: bool = False,
    ) -> Work:
        tensor.mul_(self._size(group))
        return super().reduce(tensor, 0, group, channel=channel, async_op=async_op)

    def broadcast(
        self,
        tensor: Tensor,
        source: int,
        group: Group,
        *,
        channel: Channel = "parameters",
        async_op: bool = False,
    ) -> Work:
        return super().broadcast(tensor, 0, group, channel=channel, async_op=async_op)

    def reduce_scatter(
        self,
        output: Tensor,
        tensor: Tensor,
        group: Group,
        *,
        channel: Channel = "parameters",
        async_op: bool = False,
    ) -> Work:
        size = self._size(group)
        own = tensor.chunk(size)[self.members(group).index(self.rank)] * size
        return super().reduce_scatter(output, own, group, channel=channel, async_op=async_op)

    def all_gather(
        self,
        output: Tensor,
        tensor: Tensor,
        group: Group,
        *,
        channel: Channel = "parameters",
        async_op: bool = False,
    ) -> Work:
        own, *others = output.chunk(self._size(group))
        for other in others:
            other.copy_(tensor)
        return super().all_gather(own, tensor, group, channel=channel, async_op=async_op)

    def exchange(self, sends: Mapping[int, Tensor], receives: Mapping[int, Tensor], tag: int) -> Work:
        for tensor, sent in zip(receives.values(), sends.values(), strict=True):
            tensor.copy_(sent)
        return Done()

    def _size(self, group: Group) -> int:
        return len(self.members(group))
