"""How the gradients of a group become one: the weights, the sum, and the shape of the buckets.

Gradient averaging is one mechanism, and `GradientAveraging` is all that a strategy may ask of it.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from torch import Tensor

from .communicator import Communicator
from .topology import Group

DEFAULT_BUCKET_MIB = 25.0  # PyTorch's

Weights = Callable[[Sequence[int]], Sequence[float]]
"""Samples n of the group's members in this step, in group order -> their weights, which sum to 1."""


@dataclass(frozen=True)
class Batch:
    """A rank's piece of a global batch: inputs [b, C, H, W], targets [b, …], the sizes of all ranks' pieces.

    b may be 0 where shares are uneven: the rank still takes part, with weight 0.
    """

    inputs: Tensor
    targets: Tensor
    samples_of_rank: tuple[int, ...]


def by_samples(samples: Sequence[int]) -> list[float]:
    """w_r = n_r / Σ n: the sum is the gradient of the mean loss over the union of all pieces."""
    total = sum(samples)
    return [n / total for n in samples]


def uniform(samples: Sequence[int]) -> list[float]:
    """w_r = 1 / |{q: n_q > 0}|: every rank counts alike, whatever its batch."""
    active = sum(n > 0 for n in samples)
    return [1 / active if n > 0 else 0.0 for n in samples]


class Reduction(ABC):
    """Another way to sum a bucket of gradients over a group than one all-reduce."""

    @abstractmethod
    def sum(self, bucket: Tensor, index: int, shapes: Sequence[tuple[int, ...]], comm: Communicator) -> None:
        """Sum `bucket` [n] over the group, in place and blocking.

        Called for each bucket in order, on all ranks in the same order; over real processes on a helper
        thread while the backward pass goes on. All verbs on the channel `gradients`.

        Args:
            index: the bucket's number in this step, 0 first.
            shapes: of the gradients that lie in it one after the other, Σ numel = n.
        """

    def state_dict(self) -> dict[str, Any]:
        """What a resume needs of this rank."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:  # noqa: B027 (many have no state)
        """Restore `state_dict`."""


@dataclass(frozen=True, kw_only=True)
class GradientAveraging:
    """g = Σ_r w_r·g_r over `group`; None: no averaging.

    `scale`: where the weight enters, through the loss before backward or on each bucket before its sum.
    `reduction`: None is one all-reduce. `overlap`: buckets are summed while backward goes on.
    """

    group: Group | None = None
    weights: Weights = by_samples
    scale: Literal["loss", "bucket"] = "loss"
    reduction: Reduction | None = None
    bucket_mib: float = DEFAULT_BUCKET_MIB
    overlap: bool = True
    bucket_view: bool = True

    def weight(self, batch: Batch, members: Sequence[int], rank: int) -> float:
        """This rank's weight in the step of `batch`; 1 without a group."""
        if self.group is None:
            return 1.0
        weights = self.weights([batch.samples_of_rank[member] for member in members])
        return weights[members.index(rank)]
