"""What the readers of packed files have in common: their keys, and what each has to say.

A reader says in which order records are given out (`pieces`), and reads them in that order (`read`).
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar

from ...datasets.packed.counters import Tally
from ...datasets.packed.loads import Reader, Stretch
from ...datasets.packed.packed_file import Packed
from ...datasets.packed.pieces import Pieces
from ...strategies.errors import ConfigError, at_least, within

MOST_BATCHES = 1024  # read ahead; far more than helps


@dataclass(frozen=True, kw_only=True)
class PackedReader(ABC):
    """Reads training samples from a packed file; `reader.NAME` keys.

    path: of the file; empty: in the folder of the data set. shuffle_seed: of the order in which the file has
    the samples; None: the data set's own. prefetch_batches: read ahead of the one in use. cold: the file's
    pages are dropped from the system's cache before training begins; warm: the file is read once before that.

    `by_node`: one reader per node, which feeds all its ranks; else one per rank. `same_every_epoch`: whether
    samples come in one order in all epochs and runs. `of_reading`: keys that say how is read, not in which
    order.
    """

    name: ClassVar[str]
    by_node: ClassVar[bool]
    same_every_epoch: ClassVar[bool] = True
    of_reading: ClassVar[tuple[str, ...]] = ("prefetch_batches",)

    path: str = ""
    shuffle_seed: int | None = 0
    prefetch_batches: int = 2
    cold: bool = False
    warm: bool = False

    def __post_init__(self) -> None:
        if self.shuffle_seed is not None:
            at_least("reader.shuffle_seed", self.shuffle_seed, 0)
        within("reader.prefetch_batches", self.prefetch_batches, 1, MOST_BATCHES)
        if self.cold and self.warm:
            raise ConfigError("reader.cold=true, reader.warm=true: the cache is one or the other; take one")

    @abstractmethod
    def pieces(self, packed: Packed, seed: int) -> Pieces:
        """The order in which records are given out. seed: of the run's order of the data."""

    @abstractmethod
    def read(
        self, packed: Packed, stretches: Iterable[Stretch], place: int, tally: Tally, seed: int
    ) -> Reader:
        """The reader of rank, or with `by_node` of node, number `place`."""

    def own_bytes(self, packed: Packed, step_bytes: int) -> int:
        """Memory beside that of the steps that are read ahead, at most. step_bytes: of one of these."""
        return 0

    def check(self, packed: Packed, nodes: int) -> None:  # noqa: B027 (most take every file)
        """Refuse a file with which the order is not what the reader promises. Raises ConfigError."""

    @property
    def random_access(self) -> bool:
        """Whether the system is told not to read ahead by itself."""
        return False

    def words(self) -> str:
        """In which order samples come, for people."""
        file = (
            "in the data set's own order, not shuffled"
            if self.shuffle_seed is None
            else f"shuffled once (seed {self.shuffle_seed})"
        )
        return (
            f"reader {self.name}: the order of the file, {file}, the same in every epoch and for every seed"
        )
