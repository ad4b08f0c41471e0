"""Batch order: one rank's position in the data, and the samples of its next step, which a sampler cuts."""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from copy import copy
from itertools import count
from typing import Any

from torch import Tensor

from ...datasets.sampler import Sampler, split
from ...datasets.stream_seeds import stream_seed
from ...strategies.base import Shares
from ...strategies.progress import Progress
from ...strategies.topology import Topology

Place = tuple[int, int]
"""(pass over the data, batch in it), both from 0. With independent sampling of the rank's passes."""


class BatchOrder(ABC):
    """One rank's position in the data.

    `steps_per_epoch`: of one rank. `samples_per_epoch`: of all ranks together, without `left_out`, the
    samples that are in no batch. `shares`: how the strategy splits common batches; None: equally.
    """

    steps_per_epoch: int
    samples_per_epoch: int
    left_out: int = 0
    shares: Shares | None = None

    @abstractmethod
    def sizes(self, progress: Progress) -> tuple[int, ...]:
        """Samples of each rank in this step; with independent sampling the nominal size of others."""

    @abstractmethod
    def piece(self, progress: Progress) -> Tensor:
        """Indices int64 [b] of this rank's samples in this step."""

    def place(self, progress: Progress) -> Place:
        """The place of this step."""
        return progress.epoch, progress.batch

    @abstractmethod
    def upcoming(self, progress: Progress) -> Iterator[tuple[Place, Tensor]]:
        """Place and indices of this step and of all later ones, as long as the split does not change.

        `progress` is read when the first item is taken; it may advance afterwards.
        """

    @abstractmethod
    def first_sizes(self) -> tuple[int, ...]:
        """Samples of each rank in the first batch of a pass, split equally."""

    @abstractmethod
    def counted(self, sizes: tuple[int, ...]) -> int:
        """How many samples of `sizes` this rank may count for this step."""

    def advance(self, progress: Progress) -> int:
        """Advance by one step, which `progress.samples` counts already; returns how many epochs ended."""
        if progress.last_batch:
            return 1
        progress.batch += 1
        return 0

    def digest(self, batches: int) -> str | None:
        """A digest of the samples of the first global batches; None where ranks have no common batches."""
        return None

    def state_dict(self) -> dict[str, Any]:
        """The position in the data that `Progress` does not hold."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:  # noqa: B027 (many have no place of their own)
        """Restore `state_dict`."""


class GlobalOrder(BatchOrder):
    """Equal steps on all ranks: each takes its piece of the global batch, split by `shares`."""

    def __init__(self, sampler: Sampler, rank: int) -> None:
        self.sampler, self.rank = sampler, rank
        self.steps_per_epoch, self.left_out = sampler.steps_per_epoch, sampler.left_out
        self.samples_per_epoch = sampler.samples - sampler.left_out
        self._counted: tuple[tuple[int, ...], int] = ((), 0)

    def sizes(self, progress: Progress) -> tuple[int, ...]:
        return self.sampler.samples_of_rank(progress.batch, *self._split())

    def piece(self, progress: Progress) -> Tensor:
        return self.sampler.piece(*self.place(progress), self.rank, *self._split())

    def upcoming(self, progress: Progress) -> Iterator[tuple[Place, Tensor]]:
        (first, batch), cut = self.place(progress), self._split()
        # A copy: a sampler keeps the order of one epoch, and the step may still be in the one before.
        sampler = copy(self.sampler)
        for epoch in range(first, progress.epochs):
            for number in range(batch, sampler.steps_per_epoch):
                yield (epoch, number), sampler.piece(epoch, number, self.rank, *cut)
            batch = 0

    def first_sizes(self) -> tuple[int, ...]:
        return self.sampler.samples_of_rank(0)

    def counted(self, sizes: tuple[int, ...]) -> int:
        # The tuple is mostly the same as before: with a thousand ranks, adding it up in each step costs time.
        if sizes is not self._counted[0]:
            self._counted = sizes, sum(sizes)
        return self._counted[1]

    def digest(self, batches: int) -> str | None:
        return self.sampler.digest(batches)

    def _split(self) -> tuple[tuple[int, ...] | None, int]:
        return (None, 1) if self.shares is None else (self.shares.values, self.shares.minimum)


class IndependentOrder(BatchOrder):
    """Independent sampling: each rank draws its own batches, at its own pace.

    Its batch has the size of its part of a global batch. Batches are numbered from 0 without end; passes over
    the data follow one another, each in an order of its own, as `Sampler` cuts it for one rank with
    `short_batch` join. An epoch ends when all ranks together have seen as many samples as an epoch of common
    batches has, by `progress.samples`.
    """

    def __init__(self, sampler: Sampler, topology: Topology, rank: int, seed: int) -> None:
        ranks, samples = topology.ranks, sampler.samples
        self.steps_per_epoch, self.left_out = sampler.steps_per_epoch, sampler.left_out
        self.samples_per_epoch = samples - sampler.left_out
        self._nominal = split(sampler.global_batch_size, (1.0,) * ranks, minimum=1)
        # A single rank draws the same samples as with every other strategy.
        stream = stream_seed(seed, "data") if ranks == 1 else stream_seed(seed, "data", rank)
        self._passes = Sampler(samples, self._nominal[rank], 1, stream)
        self._rank, self._number = rank, 0

    def sizes(self, progress: Progress) -> tuple[int, ...]:
        return self._sizes(self._number)

    def first_sizes(self) -> tuple[int, ...]:
        return self._sizes(0)

    def _sizes(self, number: int) -> tuple[int, ...]:
        sizes = list(self._nominal)
        sizes[self._rank] = self._passes.samples_of_rank(number % self._passes.steps_per_epoch)[0]
        return tuple(sizes)

    def piece(self, progress: Progress) -> Tensor:
        return self._passes.piece(*self.place(progress), 0)

    def place(self, progress: Progress) -> Place:
        return divmod(self._number, self._passes.steps_per_epoch)

    def upcoming(self, progress: Progress) -> Iterator[tuple[Place, Tensor]]:
        passes = copy(self._passes)
        for number in count(self._number):
            place = divmod(number, passes.steps_per_epoch)
            yield place, passes.piece(*place, 0)

    def counted(self, sizes: tuple[int, ...]) -> int:
        return sizes[self._rank]

    def advance(self, progress: Progress) -> int:
        self._number += 1
        progress.batch += 1
        return min(progress.samples // self.samples_per_epoch, progress.epochs) - progress.epoch

    def state_dict(self) -> dict[str, Any]:
        return {"number": self._number}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._number = state["number"]
