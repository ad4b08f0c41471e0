"""The replica of real processes: one `DistributedDataParallel`, one communication hook, one record it reads.

Everything that a strategy may ask of gradient averaging (which group, which weights) is a field of
`GradientAveraging`; a second DDP wrapper on the same module would fire its hooks as well.
"""

import inspect
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from ..strategies.replica import Batch, Replica
from ..strategies.topology import Group
from .torch_communicator import GradBucket, TorchCommunicator

# The switch has two names: torch 2.14 deprecates the first, 2.9 does not know the second.
_KNOWN = inspect.signature(DistributedDataParallel.__init__).parameters
_NO_FORWARD_SYNC: dict[str, Any] = {
    "forward_sync_buffers" if "forward_sync_buffers" in _KNOWN else "broadcast_buffers": False
}


@dataclass
class GradientAveraging:
    """This rank's gradients times `weight` (n_r / Σ n_r in the group) are summed over `group`."""

    group: Group | None = None
    weight: float = 1.0
    last_launch: int = 0
    key: int = 0


class WithLoss(nn.Module):
    """Model and criterion as one module, so that DDP sees the loss, plus one element that carries a wish.

    `wish` is a parameter of value zero whose gradient is whatever this rank has to say. DDP sums it with its
    first
    bucket: all ranks hear of a wish in the step in which it is made, and no collective is added.

    The rank's weight multiplies the loss, so that gradients come weighted out of the backward pass and
    buckets need only be summed: PyTorch's own averaging walks over all gradients once more to divide them.
    """

    def __init__(self, model: nn.Module, criterion: nn.Module) -> None:
        super().__init__()
        self.model, self.criterion = model, criterion
        # Of the model's own type: DDP never mixes types in a bucket, so another one would cost a collective.
        dtype = next(model.parameters()).dtype
        self.wish = nn.Parameter(torch.zeros(1, dtype=dtype))
        self.register_buffer("says", torch.zeros(1, dtype=dtype), persistent=False)
        self.says: Tensor

    def forward(self, inputs: Tensor, targets: Tensor, weight: float) -> tuple[Tensor, Tensor]:
        loss = self.criterion(self.model(inputs), targets)
        says = torch.maximum(self.says, (~torch.isfinite(loss.detach())).to(self.says.dtype))
        # The wish joins as an addition of zero: the bits of the loss and of all gradients stay what they are.
        joined = loss + (self.wish * says).sum().to(loss.dtype)
        return (joined if weight == 1 else joined * weight), loss.detach()


class TorchReplica(Replica):
    """A replica whose gradients are averaged in buckets while the backward pass goes on."""

    def __init__(self, model: nn.Module, criterion: nn.Module, comm: TorchCommunicator) -> None:
        super().__init__(model, criterion)
        self.comm = comm
        self.averaging = GradientAveraging()
        self._with_loss = WithLoss(model, criterion).to(comm.device)
        self._module: nn.Module = self._with_loss

    def average_gradients_over(self, group: Group | None) -> None:
        self.averaging.group = group
        if isinstance(self._module, DistributedDataParallel) or self.comm.ddp_group() is None:
            return
        device = self.comm.device
        ddp = DistributedDataParallel(
            self._with_loss,
            device_ids=[device.index] if device.type == "cuda" else None,
            process_group=self.comm.ddp_group(),
            gradient_as_bucket_view=True,
            # Buffers are averaged where a model is judged or saved: no arm pays a hidden broadcast per step.
            **_NO_FORWARD_SYNC,
        )
        ddp.register_comm_hook(self, _hook)
        self._module = ddp

    def compute_gradients(self, batch: Batch) -> Tensor:
        averaging = self.averaging
        self._with_loss.wish.grad = None
        for parameter in self.parameters.tensors:
            parameter.grad = None
        averaging.weight = 1.0
        if averaging.group is not None:
            members = self.comm.members(averaging.group)
            total = sum(batch.samples_of_rank[member] for member in members)
            averaging.weight = batch.samples_of_rank[self.comm.rank] / total
            averaging.key = self.comm.traffic.launch("gradients", members, 0)
        self._with_loss.says.fill_(float(self.wish))
        joined, loss = self._module(batch.inputs, batch.targets, averaging.weight)
        if averaging.group is None:
            joined.backward()
        else:
            with self.comm.announced(f"backward, all_reduce on gradients/{averaging.group}"):
                joined.backward()
            # The last bucket is launched when the last gradient is there: what backward() takes from then on
            # is waiting for the sums, exposed. Buckets that ended earlier were hidden behind computation.
            traffic = self.comm.traffic
            if averaging.key in traffic.launches and averaging.weight < 1:
                traffic.launches[averaging.key] = averaging.last_launch
                traffic.block(averaging.key, averaging.last_launch, self.comm.now())
        wish = self._with_loss.wish.grad
        self.wished = wish is not None and bool(wish.item() != 0)
        return loss

    def ddp_module(self) -> nn.Module:
        """The module that forward passes go through: a `DistributedDataParallel` if ranks are several."""
        return self._module

    def rng_state(self) -> dict[str, Tensor]:
        state = {"cpu": torch.get_rng_state()}
        if self.comm.device.type == "cuda":
            state["cuda"] = torch.cuda.get_rng_state(self.comm.device)
        return state

    def load_rng_state(self, state: dict[str, Tensor]) -> None:
        torch.set_rng_state(state["cpu"])
        if "cuda" in state:
            torch.cuda.set_rng_state(state["cuda"], self.comm.device)


# PyTorch compares the annotations with the types themselves, so they must not be strings.
def _hook(replica: TorchReplica, bucket: GradBucket) -> torch.futures.Future[Tensor]:
    averaging, buffer = replica.averaging, bucket.buffer()
    averaging.last_launch = replica.comm.now()
    if averaging.group is None or averaging.weight == 1:
        done: torch.futures.Future[Tensor] = torch.futures.Future()
        done.set_result(buffer)
        return done
    return replica.comm.start_sum(buffer, averaging.group)
