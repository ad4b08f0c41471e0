"""The keys of `reader=NAME`: which reader a run has, and in which order it gives samples."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import ClassVar

from ...datasets.dataset import Dataset
from ...datasets.packed import readers, record_order
from ...datasets.packed.packed_file import Packed
from ...datasets.packed.readers import CounterTally, Reader
from ...datasets.packed.record_order import EpochSlice, RecordOrder, chunked_order
from ...strategies.errors import ConfigError, above, at_least, within

CHUNKS_A_NODE = 4  # at least: of so many each node draws its samples anew for each epoch
ReaderOf = Callable[[Packed, Iterable[EpochSlice], int, CounterTally], Reader]
"""Makes the reader of a file of rank, or where one feeds all ranks of a node of node, of that number."""


@dataclass(frozen=True, kw_only=True)
class NoReader:
    """`reader=none`: samples come from the data set by their numbers, in an order drawn for each epoch."""

    name: ClassVar[str] = "none"


@dataclass(frozen=True, kw_only=True)
class PackedReader:
    """Reads training samples from a packed file; `reader.NAME` keys.

    path: of the file; empty: in the folder of the data set. shuffle_seed: of the order in which the file has
    the samples; None: the data set's own. prefetch_batches: read ahead of the one in use. cold: the file's
    pages are dropped from the system's cache before training begins; warm: the file is read once before that.

    Order and reader are the functions of `record_order` and `readers` with its name.
    `by_node`: one reader per node, which feeds all its ranks; else one per rank. `random_access`: whether the
    system is told not to read ahead by itself.
    """

    name: ClassVar[str]
    by_node: ClassVar[bool]
    random_access: ClassVar[bool] = False

    path: str = ""
    shuffle_seed: int | None = 0
    prefetch_batches: int = 2
    cold: bool = False
    warm: bool = False

    def __post_init__(self) -> None:
        if self.shuffle_seed is not None:
            at_least("reader.shuffle_seed", self.shuffle_seed, 0)
        within("reader.prefetch_batches", self.prefetch_batches, 1, 1024)  # far more than helps
        if self.cold and self.warm:
            raise ConfigError("reader.cold=true, reader.warm=true: the cache is one or the other; take one")

    def order(self, packed: Packed, seed: int) -> RecordOrder:
        """The order in which records are given out. seed: of the run's order of the data."""
        return getattr(record_order, self.name)

    def reader(self, seed: int) -> ReaderOf:
        """What reads in that order."""
        return getattr(readers, self.name)

    def check(self, packed: Packed, nodes: int) -> None:
        """Refuse a file with which the order is not what the reader promises. Raises ConfigError."""

    def check_place(self, dataset: Dataset) -> None:
        """Refuse a data set without a folder for the file, unless `path` names one. Raises ConfigError."""
        if not self.path and dataset.beside() is None:
            raise ConfigError(
                f"reader={self.name}: {dataset.name} has no folder of its own for a packed file; say where "
                "it is to be: reader.path=FILE"
            )

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


@dataclass(frozen=True, kw_only=True)
class Strided(PackedReader):
    """`reader=strided`: the native way. Each rank reads its records, dealt in turn, one by one."""

    name: ClassVar[str] = "strided"
    by_node: ClassVar[bool] = False
    random_access: ClassVar[bool] = True  # of single records what lies behind them is not wanted


@dataclass(frozen=True, kw_only=True)
class Block(PackedReader):
    """`reader=block`: each rank reads one run of the file an epoch, batch by batch.

    A rank sees the same samples in every epoch; what they are depends on the number of ranks.
    """

    name: ClassVar[str] = "block"
    by_node: ClassVar[bool] = False


@dataclass(frozen=True, kw_only=True)
class NodeBatch(PackedReader):
    """`reader=node_batch`: each node reads one run a step for all its ranks.

    The batches are those of sequential order, for any nodes and ranks.
    """

    name: ClassVar[str] = "node_batch"
    by_node: ClassVar[bool] = True


@dataclass(frozen=True, kw_only=True)
class ChunkedShuffle(PackedReader):
    """`reader=chunked_shuffle`: chunks in an order drawn for each epoch, dealt to nodes, shuffled in memory.

    chunk_mib: read at once; window_chunks: as many are in memory together, their records shuffled.
    The order follows from the run's seed and the number of nodes.
    """

    name: ClassVar[str] = "chunked_shuffle"
    by_node: ClassVar[bool] = True

    chunk_mib: float = 4.0
    window_chunks: int = readers.WINDOW_CHUNKS

    def __post_init__(self) -> None:
        super().__post_init__()
        above("reader.chunk_mib", self.chunk_mib, 0)
        within("reader.chunk_mib", self.chunk_mib, 0, 2**20)
        at_least("reader.window_chunks", self.window_chunks, 1)

    @property
    def chunk_bytes(self) -> int:
        return max(1, round(self.chunk_mib * 2**20))

    def chunks(self, packed: Packed) -> list[range]:
        return record_order.chunks(packed.starts(), self.chunk_bytes)

    def check(self, packed: Packed, nodes: int) -> None:
        """With few chunks a node would have much the same samples in every epoch."""
        count, needed = len(self.chunks(packed)), CHUNKS_A_NODE * nodes
        if nodes > 1 and count < needed:
            raise ConfigError(
                f"reader.chunk_mib={self.chunk_mib:g}: makes {count} chunks of {packed.path}, and {nodes} "
                f"nodes need {needed} ({CHUNKS_A_NODE} each); take smaller chunks, or another reader"
            )

    def order(self, packed: Packed, seed: int) -> RecordOrder:
        return chunked_order(self.chunks(packed), seed, self.window_chunks)

    def reader(self, seed: int) -> ReaderOf:
        keys = {"chunk_bytes": self.chunk_bytes, "window_chunks": self.window_chunks}
        return partial(readers.chunked_shuffle, seed=seed, **keys)

    def words(self) -> str:
        return (
            f"reader {self.name}: chunks of {self.chunk_mib:g} MiB in an order drawn for each epoch, "
            f"shuffled in memory {self.window_chunks} at a time"
        )


ReaderConfig = NoReader | PackedReader
