"""Where a run stands: what strategies may base decisions on. Nothing in it is set by hand."""

from dataclasses import dataclass


@dataclass
class Progress:
    """The loop's position, equal on all ranks at the same step.

    `step` counts optimizer steps of the whole run from 0, `batch` those of the epoch; `samples` counts global
    samples whose gradients have been applied; `samples_of_rank` are the samples n_r of each rank in the
    present step. `epoch_loss` is the mean training loss over all samples and ranks of the epoch just ended
    (float64), there only for strategies with `reads_epoch_loss`.
    """

    epochs: int
    steps_per_epoch: int
    step: int = 0
    epoch: int = 0
    batch: int = 0
    samples: int = 0
    samples_of_rank: tuple[int, ...] = ()
    epoch_loss: float | None = None

    @property
    def last_batch(self) -> bool:
        """Whether this is the last batch of the epoch."""
        return self.batch == self.steps_per_epoch - 1

    @property
    def steps(self) -> int:
        """Steps of the complete schedule."""
        return self.epochs * self.steps_per_epoch
