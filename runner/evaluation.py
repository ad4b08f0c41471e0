"""Exact evaluation: every sample once, for any number of ranks; hits and counts are summed."""

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.nn import functional

from ..strategies.topology import WORLD

if TYPE_CHECKING:
    from ..datasets.data import Samples
    from ..strategies.communicator import Communicator


@dataclass(frozen=True)
class Score:
    """Hits among `count` samples and the sum of their losses."""

    correct: int
    count: int
    loss_sum: float

    @property
    def accuracy(self) -> float:
        """Share of samples that the model got right; NaN of none."""
        return self.correct / self.count if self.count else math.nan

    @property
    def loss(self) -> float:
        """Mean loss; NaN of no sample."""
        return self.loss_sum / self.count if self.count else math.nan

    def value(self, metric: str) -> float:
        """The metric called `accuracy` or `loss`."""
        return self.accuracy if metric == "accuracy" else self.loss

    def reaches(self, target: float, metric: str) -> bool:
        """ceil(target·M) right answers of M reach an accuracy, `target` or less a loss; NaN never does."""
        if metric == "loss":
            return self.loss <= target
        # The product may miss a whole number by a rounding error: 0.95 · 360 must be 342.
        return self.count > 0 and self.correct >= math.ceil(target * self.count - 1e-9)


@torch.no_grad()
def score(
    model: nn.Module,
    samples: "Samples",
    indices: Tensor,
    device: torch.device,
    dtype: torch.dtype,
    batch_size: int = 256,
) -> Score:
    """Score `model` on `samples[indices]`; outputs [b, classes] are compared with labels [b].

    A sample whose outputs are not all finite counts as wrong. The model's mode is restored.
    """
    training = model.training
    model.eval()
    correct, loss_sum = 0, 0.0
    for piece in indices.split(batch_size):
        inputs, targets = samples.batch(piece)
        outputs = model(inputs.to(device, dtype))
        targets = targets.to(device)
        hits = (outputs.argmax(1) == targets) & outputs.isfinite().all(1)
        correct += int(hits.sum())
        loss_sum += float(functional.cross_entropy(outputs.double(), targets, reduction="sum"))
    model.train(training)
    return Score(correct, len(indices), loss_sum)


def add_scores(own: Score, comm: "Communicator", expected: int) -> Score:
    """The sum of all ranks' scores, on every rank.

    Raises:
        RuntimeError: not every one of the `expected` samples was scored exactly once.
    """
    counts = torch.tensor([own.correct, own.count], dtype=torch.int64)
    losses = torch.tensor([own.loss_sum], dtype=torch.float64)
    comm.all_reduce(counts, WORLD, channel="control").wait()
    comm.all_reduce(losses, WORLD, channel="control").wait()
    correct, count = counts.tolist()
    if count != expected:
        raise RuntimeError(f"{count} samples were evaluated, the split has {expected}")
    return Score(correct, count, losses.item())
