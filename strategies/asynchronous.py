"""The contract of a strategy whose ranks train at their own pace: what comes on top of `Strategy`."""

from abc import abstractmethod

from .base import Strategy
from .progress import Progress


class AsynchronousStrategy(Strategy):
    """Each rank draws from all data by itself and steps at its own pace; the run ends by global samples.

    With other strategies all ranks take equal steps on the pieces of common global batches. Here `step` and
    `batch` of `Progress` are this rank's own, and `is_sync_point` says yes where all ranks have applied the
    same round.
    """

    @abstractmethod
    def samples(self, progress: Progress) -> int:
        """Global samples in the model where ranks just met, exactly; equal on all ranks.

        Read only after `is_sync_point` said yes.
        """

    @abstractmethod
    def global_samples(self, progress: Progress) -> int:
        """Global samples before the present step, for the learning rate: never more than there are."""

    def ended(self, progress: Progress) -> bool:
        """Whether the run ends where ranks just met (`progress.samples` counts them). Equal on all ranks."""
        return progress.samples >= progress.budget

    def reserve(self, copies: int) -> None:
        """Before training with deferred evaluation: that many snapshots will be asked for at most."""
