"""What a task is: the loss of a batch, what an evaluation counts, and the metrics that come of the counts."""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar

from torch import Tensor, nn

MOST_SAMPLES = 256  # of a forward pass in an evaluation


@dataclass(frozen=True, kw_only=True)
class Task(ABC):
    """A task on `classes` classes. Train loop and strategies know none by name.

    name: as data sets and models give it; metrics: what a target may be of, the headline first; all but
    `loss` are shares, and better the higher. label_smoothing: of the criterion alone.
    """

    name: ClassVar[str]
    metrics: ClassVar[tuple[str, ...]]
    smooths: ClassVar[bool] = False
    """Whether the criterion has `label_smoothing`."""

    classes: int
    label_smoothing: float = 0.0

    @property
    def headline(self) -> str:
        """The metric that models are judged by."""
        return self.metrics[0]

    @abstractmethod
    def criterion(self) -> nn.Module:
        """Maps (outputs, targets) to a batch's loss [], the mean of its samples' losses.

        As each sample counts 1, weights n_r / Σ n_r make the loss of all ranks' batches of theirs, exactly.
        """

    @abstractmethod
    def loss_sum(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """The sum [] of the samples' losses in an evaluation, without label smoothing."""

    @abstractmethod
    def nothing(self) -> Tensor:
        """int64, what is counted of no sample."""

    @abstractmethod
    def count(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """int64, what is counted of a batch, to be summed over batches and ranks; on the outputs' device.

        Outputs that are not all finite are wrong.
        """

    @abstractmethod
    def numbers(self, counts: Tensor, samples: int) -> dict[str, Any]:
        """An evaluation's fields from the sum of all counts, `loss` apart; NaN where there is nothing."""

    @abstractmethod
    def noise(self, samples: int, height: int, width: int) -> Tensor:
        """Targets to measure with, of samples of that size; every class in turn."""

    def evaluation_batch(self, height: int, width: int) -> int:
        """Samples of a forward pass in an evaluation."""
        return MOST_SAMPLES
