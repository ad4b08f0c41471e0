"""Which samples a rank's next step takes when a reader gives them out."""

import hashlib
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from ...datasets.packed.loads import Stretch
from ...datasets.packed.orders import Epoch
from ...datasets.sampler import Sampler
from ...strategies.errors import ConfigError
from ...strategies.progress import Progress
from ..feed import GlobalFeed, Place
from .base import PackedReader
from .packed_set import PackedSet


class ReaderFeed(GlobalFeed):
    """Steps and sizes of a `GlobalFeed`; the samples are those of `reader`, by their numbers in the data set.

    seed: of the run's order of the data. Raises ConfigError: a file that the reader cannot deal to the nodes.
    """

    def __init__(
        self,
        sampler: Sampler,
        rank: int,
        ranks_of_nodes: tuple[int, ...],
        reader: PackedReader,
        packed_set: PackedSet,
        seed: int,
    ) -> None:
        super().__init__(sampler, rank)
        self.reader, self.set, self.seed = reader, packed_set, seed
        self._ranks_of_nodes = ranks_of_nodes
        reader.check(packed_set.packed, len(ranks_of_nodes))
        self._pieces = reader.pieces(packed_set.packed, seed)

    def piece(self, progress: Progress) -> Tensor:
        return self._samples(self.epoch(), *self.place(progress))

    def upcoming(self, progress: Progress) -> Iterator[tuple[Place, Tensor]]:
        for stretch in self.stretches(progress):
            for step in range(stretch.step, stretch.epoch.steps):
                yield (stretch.number, step), self._samples(stretch.epoch, stretch.number, step)

    def stretches(self, progress: Progress) -> Iterator[Stretch]:
        """The present step and all that follow while nothing else is decided, as readers take them."""
        (first, step), epoch = self.place(progress), self.epoch()
        for number in range(first, progress.epochs):
            yield Stretch(number=number, epoch=epoch, step=step if number == first else 0)

    def epoch(self) -> Epoch:
        """How an epoch is cut by the present shares."""
        return Epoch.of(self.sampler, self._ranks_of_nodes, *self._split())

    def digest(self, batches: int) -> str:
        """Of the samples of the first global batches, sorted: however they are dealt to ranks."""
        seen, epoch, ranks = hashlib.blake2b(digest_size=8), self.epoch(), range(self.sampler.ranks)
        for place in range(batches):
            number, step = divmod(place, epoch.steps)
            batch = torch.cat([self._samples(epoch, number, step, rank) for rank in ranks])
            seen.update(batch.sort().values.numpy().tobytes())
        return seen.hexdigest()

    def state_dict(self) -> dict[str, Any]:
        return {"source": self.set.packed.description.source}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        source = self.set.packed.description.source
        if state["source"] != source:
            raise ConfigError(
                f"{self.set.packed.path}: is another file (of samples {source}) than the run began with (of "
                f"{state['source']}); make that one again, or begin a new run"
            )

    def _samples(self, epoch: Epoch, number: int, step: int, rank: int | None = None) -> Tensor:
        records = self._pieces.of(epoch, number, self.rank if rank is None else rank, step)
        return self.set.order[torch.from_numpy(records)]
