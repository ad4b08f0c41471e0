"""Exact evaluation: every sample once, for any number of ranks; what the task counts is summed."""

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from ...strategies.topology import WORLD
from ..config.tasks import MOST_SAMPLES, Task
from .precision import outputs_of

if TYPE_CHECKING:
    from ...datasets.data import Samples
    from ...strategies.communicator import Communicator


@dataclass(frozen=True, eq=False)
class Score:
    """What `task` counted of `samples` samples (int64, on the CPU), and the sum of their losses."""

    task: Task
    counts: Tensor
    samples: int
    loss_sum: float

    def numbers(self) -> dict[str, Any]:
        """The metrics, and the whole numbers that they come of; NaN of no sample."""
        loss = self.loss_sum / self.samples if self.samples else math.nan
        return self.task.numbers(self.counts, self.samples) | {"loss": loss}


@torch.no_grad()
def score(
    model: nn.Module,
    samples: "Samples",
    indices: Tensor,
    device: torch.device,
    dtype: torch.dtype,
    *,
    task: Task,
    batch_size: int = MOST_SAMPLES,
    autocast: torch.dtype | None = None,
) -> Score:
    """Score `model` on `samples[indices]`, `batch_size` of them at a time. The model's mode is restored.

    `autocast`: 16 bits inside the model, as in training.
    """
    training = model.training
    model.eval()
    counts, loss_sum = task.nothing(), 0.0
    for piece in indices.split(batch_size):
        inputs, targets = samples.batch(piece)
        outputs = outputs_of(model, inputs.to(device, dtype), autocast)
        targets = targets.to(device)
        counts += task.count(outputs, targets).cpu()
        loss_sum += float(task.loss_sum(outputs.double(), targets))
    model.train(training)
    return Score(task, counts, len(indices), loss_sum)


def add_scores(part: Score, comm: "Communicator", expected: int) -> Score:
    """The sum of all ranks' scores, on every rank; `part` is this rank's.

    Raises:
        RuntimeError: not every one of the `expected` samples was scored exactly once.
    """
    sums = torch.cat([part.counts.flatten(), torch.tensor([part.samples])])
    losses = torch.tensor([part.loss_sum], dtype=torch.float64)
    comm.all_reduce(sums, WORLD, channel="control").wait()
    comm.all_reduce(losses, WORLD, channel="control").wait()
    samples = int(sums[-1])
    if samples != expected:
        raise RuntimeError(f"{samples} samples were evaluated, the split has {expected}")
    return Score(part.task, sums[:-1].view_as(part.counts), samples, losses.item())
