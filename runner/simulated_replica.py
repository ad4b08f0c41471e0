"""The replica of virtual time: real gradients, a modelled step time, one all-reduce for all of them.

The gradient all-reduce starts when the backward pass has ended: overlap per bucket is not modelled here.
"""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from ..strategies.replica import Batch, Replica
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
        self._step_time = step_time
        self._rng = torch.get_rng_state()

    def compute_gradients(self, batch: Batch) -> Tensor:
        members = self.comm.members(self.averaging.group) if self.averaging.group is not None else ()
        weight = self.averaging.weight(batch, members, self.comm.rank)
        self._clear_gradients()
        shared = torch.get_rng_state()
        torch.set_rng_state(self._rng)
        with self.stand_in(batch) as (inputs, targets):
            loss = self.criterion(self.model(inputs), targets)
            scaled = self.averaging.scale == "loss" and weight != 1
            (loss * weight if scaled else loss).backward()
        self._rng = torch.get_rng_state()
        torch.set_rng_state(shared)
        took = self._step_time(self.comm.rank, len(batch.targets))
        self.forward_ns, self.compute_ns = took // 3, took
        self.comm.simulator.advance(self.comm.rank, took)
        blank = len(batch.targets) == 0
        loss = torch.zeros_like(loss) if blank else loss.detach()
        self.wished = self.wish or not bool(torch.isfinite(loss))
        if blank and len(members) < 2:
            self._clear_gradients()
        if len(members) > 1:
            # 0 times what is not a number is not one either: a blank sample counts nothing.
            self._average(0.0 if blank else 1.0 if scaled else weight)
        return loss

    def time_steps(self, samples: int, steps: int) -> list[float]:
        took = [self._step_time(self.comm.rank, samples) for _ in range(steps)]
        self.comm.simulator.advance(self.comm.rank, sum(took))
        return [nanoseconds / 1e9 for nanoseconds in took]

    def rng_state(self) -> dict[str, Tensor]:
        return {"cpu": self._rng}

    def load_rng_state(self, state: dict[str, Tensor]) -> None:
        self._rng = state["cpu"]

    def _averaging_changed(self) -> None:
        return

    def _average(self, weight: float) -> None:
        averaging = self.averaging
        assert averaging.group is not None
        flat = self.parameters.empty(extra=1)
        self.gradients(flat)
        if weight == 0:
            flat.zero_()
        elif weight != 1:
            flat *= weight
        flat[-1] = float(self.wished)
        if averaging.reduction is None:
            self.comm.all_reduce(flat, averaging.group, channel="gradients").wait()
        else:
            shapes = [*(slot.shape for slot in self.parameters.slots), (1,)]
            averaging.reduction.sum(flat, 0, shapes, self.comm)
        self.load_gradients(flat)
        self.wished = bool(flat[-1] != 0)
