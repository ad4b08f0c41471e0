"""The replica of virtual time: real gradients, a modelled step time, one all-reduce for all of them.

The gradient all-reduce starts when the backward pass has ended: overlap per bucket is not modelled here.
"""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from ..strategies.replica import Batch, Replica
from ..strategies.topology import Group
from .simulated_communicator import SimulatedCommunicator

StepTime = Callable[[int, int], int]
"""(rank, samples in this rank's batch) -> nanoseconds of forward and backward."""


class SimulatedReplica(Replica):
    """A replica on a virtual clock.

    Ranks share a process, so each keeps its own state of torch's generator.
    """

    def __init__(
        self, model: nn.Module, criterion: nn.Module, comm: SimulatedCommunicator, step_time: StepTime
    ) -> None:
        super().__init__(model, criterion)
        self.comm = comm
        self.group: Group | None = None
        self._step_time = step_time
        self._rng = torch.get_rng_state()

    def average_gradients_over(self, group: Group | None) -> None:
        self.group = group

    def compute_gradients(self, batch: Batch) -> Tensor:
        for parameter in self.parameters.tensors:
            parameter.grad = None
        shared = torch.get_rng_state()
        torch.set_rng_state(self._rng)
        loss = self.criterion(self.model(batch.inputs), batch.targets)
        loss.backward()
        self._rng = torch.get_rng_state()
        torch.set_rng_state(shared)
        self.comm.simulator.advance(self.comm.rank, self._step_time(self.comm.rank, len(batch.targets)))
        self.wished = self.wish or not bool(torch.isfinite(loss.detach()))
        if self.group is not None and len(self.comm.members(self.group)) > 1:
            self._average(batch)
        return loss.detach()

    def rng_state(self) -> dict[str, Tensor]:
        return {"cpu": self._rng}

    def load_rng_state(self, state: dict[str, Tensor]) -> None:
        self._rng = state["cpu"]

    def _average(self, batch: Batch) -> None:
        assert self.group is not None
        members = self.comm.members(self.group)
        total = sum(batch.samples_of_rank[member] for member in members)
        flat = self.parameters.empty(extra=1)
        self.gradients(flat)
        flat[-1] = float(self.wished)
        flat *= batch.samples_of_rank[self.comm.rank] / total
        self.comm.all_reduce(flat, self.group, channel="gradients").wait()
        self.load_gradients(flat)
        self.wished = bool(flat[-1] != 0)
