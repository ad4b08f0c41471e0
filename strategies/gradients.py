"""How the gradients of a group become one: the weights, the sum, and the shape of the buckets.

Gradient averaging is one mechanism, and `GradientAveraging` is all that a strategy may ask of it.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from torch import Tensor

from .communicator import Communicator, Work
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
    def levels(
        self, bucket: Tensor, index: int, shapes: Sequence[tuple[int, ...]], comm: Communicator
    ) -> Iterator[Work | None]:
        """Sum `bucket` [n] over the group in place: started operations, each waited for before the next.

        None: a level in which this rank has no part. All ranks yield equally often, so that a `Pipeline` may
        begin the next bucket meanwhile. Called for each bucket in order, on all ranks in the same order; over
        real processes on a helper thread while the backward pass goes on. All verbs on the channel
        `gradients`.

        index: the bucket's number in this step, 0 first; shapes: of its gradients, Σ numel = n.
        """

    def sum(self, bucket: Tensor, index: int, shapes: Sequence[tuple[int, ...]], comm: Communicator) -> None:
        """All levels, one after the other."""
        for work in self.levels(bucket, index, shapes, comm):
            if work is not None:
                work.wait()

    def state_dict(self) -> dict[str, Any]:
        """What a resume needs of this rank."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:  # noqa: B027 (many have no state)
        """Restore `state_dict`."""


class Pipeline:
    """Buckets of one step on their way through the levels of a reduction, one behind the other.

    While a bucket is in its second level, the next one is in its first and the one before in its third. The
    order in which operations begin follows from the order of the buckets alone, never from time, so that it
    is equal on all ranks: the first level of the new bucket, the next one of the bucket before, the second of
    the new one, the next ones of those that are older. The last bucket finds the third level of the one
    before still to be done: if that takes longer than its own second level, the rest of it is lost time.
    """

    def __init__(self) -> None:
        self._under_way: list[tuple[Iterator[None], Callable[[], None]]] = []

    def add(self, levels: Iterator[Work | None], done: Callable[[], None], *, last: bool) -> None:
        """Begin the sum of the next bucket and let the older ones go on; `done` is called when it is over.

        With `last`, of the step's last bucket, returns when all sums are over.
        """
        new, older = (_in_turn(levels), done), self._under_way[::-1]
        self._under_way.append(new)
        for bucket in (new, *older[:1], new, *older[1:]):
            self._advance(bucket)
        while last and self._under_way:
            for bucket in list(self._under_way):
                self._advance(bucket)

    def abandon(self) -> None:
        """After an error: call `done` of every bucket under way and forget it."""
        under_way, self._under_way = self._under_way, []
        for _, done in under_way:
            done()

    def _advance(self, bucket: tuple[Iterator[None], Callable[[], None]]) -> None:
        """Wait for the bucket's present level and begin its next one, if it is not over."""
        if bucket not in self._under_way:
            return
        levels, done = bucket
        try:
            next(levels)
        except StopIteration:
            self._under_way.remove(bucket)
            done()


def _in_turn(levels: Iterator[Work | None]) -> Iterator[None]:
    """Begins a level, and pauses before it waits for it."""
    for work in levels:
        yield
        if work is not None:
            work.wait()


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
