"""`reader=chunked_shuffle`: chunks in an order drawn for each epoch, dealt to nodes, shuffled in memory."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar

from ...datasets.packed import orders, readers
from ...datasets.packed.counters import Tally
from ...datasets.packed.loads import Reader, Stretch
from ...datasets.packed.packed_file import Packed
from ...datasets.packed.pieces import Chunked, Pieces
from ...strategies.errors import above, at_least
from .base import PackedReader


@dataclass(frozen=True, kw_only=True)
class ChunkedShuffle(PackedReader):
    """chunk_mib: read at once; window_chunks: as many are in memory together, their records shuffled.

    The order follows from the run's seed and the number of nodes.
    """

    name: ClassVar[str] = "chunked_shuffle"
    by_node: ClassVar[bool] = True
    same_every_epoch: ClassVar[bool] = False

    chunk_mib: float = 4.0
    window_chunks: int = readers.WINDOW_CHUNKS

    def __post_init__(self) -> None:
        super().__post_init__()
        above("reader.chunk_mib", self.chunk_mib, 0)
        at_least("reader.window_chunks", self.window_chunks, 1)

    @property
    def chunk_bytes(self) -> int:
        """`chunk_mib` in bytes."""
        return max(1, round(self.chunk_mib * 2**20))

    def pieces(self, packed: Packed, seed: int) -> Pieces:
        """See `PackedReader`."""
        return Chunked(orders.chunks(packed.starts(), self.chunk_bytes), seed, self.window_chunks)

    def read(
        self, packed: Packed, stretches: Iterable[Stretch], place: int, tally: Tally, seed: int
    ) -> Reader:
        """See `PackedReader`."""
        return readers.chunked_shuffle(
            packed,
            stretches,
            place,
            tally,
            seed=seed,
            chunk_bytes=self.chunk_bytes,
            window_chunks=self.window_chunks,
        )

    def words(self) -> str:
        """See `PackedReader`."""
        return (
            f"reader {self.name}: chunks of {self.chunk_mib:g} MiB in an order drawn for each epoch, "
            f"shuffled in memory {self.window_chunks} at a time"
        )
