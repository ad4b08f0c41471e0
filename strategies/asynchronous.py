"""The contract of a strategy whose ranks train at their own pace: what it adds to `Strategy`."""

from abc import abstractmethod

from .base import Strategy
from .progress import Progress


class AsynchronousStrategy(Strategy):
    """Each rank draws its own samples from all data and steps at its own pace; global samples end the run.

    With other strategies all ranks take equal steps on the pieces of common global batches. Here `step` and
    `batch` of `Progress` count this rank's steps, and `is_sync_point` is true where all ranks have applied
    the same round.
    """

    @abstractmethod
    def samples(self, progress: Progress) -> int:
        """Global samples that the model has seen at this sync point, exactly; equal on all ranks."""

    @abstractmethod
    def global_samples(self, progress: Progress) -> int:
        """Global samples before the present step, as far as this rank knows: for the learning rate."""

    def ended(self, progress: Progress) -> bool:
        """Whether the run ends at this sync point, by `progress.samples`. Equal on all ranks."""
        return progress.samples >= progress.budget

    def reserve(self, copies: int) -> None:
        """Training with deferred evaluation begins: at most so many snapshots are kept at once."""
