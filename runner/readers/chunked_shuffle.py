"""`reader=chunked_shuffle`: chunks in an order drawn for each epoch, dealt to nodes, shuffled in memory."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar

from ...datasets.packed import orders, readers
from ...datasets.packed.counters import Tally
from ...datasets.packed.loads import Reader, Stretch
from ...datasets.packed.packed_file import Packed
from ...datasets.packed.pieces import Chunked, Pieces
from ...strategies.errors import ConfigError, above, at_least, within
from .base import PackedReader

MOST_MIB = 2**20
CHUNKS_A_NODE = 4  # at least: of so many each node draws its samples anew for each epoch


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
        within("reader.chunk_mib", self.chunk_mib, 0, MOST_MIB)
        at_least("reader.window_chunks", self.window_chunks, 1)

    @property
    def chunk_bytes(self) -> int:
        """`chunk_mib` in bytes."""
        return max(1, round(self.chunk_mib * 2**20))

    def check(self, packed: Packed, nodes: int) -> None:
        """See `PackedReader`: with few chunks a node would have much the same samples in every epoch."""
        starts, needed = packed.starts(), CHUNKS_A_NODE * nodes
        found = len(orders.chunks(starts, self.chunk_bytes))
        if nodes == 1 or found >= needed:
            return
        fitting = _fitting_mib(starts, needed)
        way_out = "take another reader" if fitting is None else f"take reader.chunk_mib={fitting:g} or less"
        raise ConfigError(
            f"reader.chunk_mib={self.chunk_mib:g}: makes {found} chunks of the {len(packed)} records of "
            f"{packed.path}, and {nodes} nodes need {needed} ({CHUNKS_A_NODE} each), or a node has much the "
            f"same samples in every epoch; {way_out}"
        )

    def own_bytes(self, packed: Packed, step_bytes: int) -> int:
        """See `PackedReader`."""
        all_chunks = orders.chunks(packed.starts(), self.chunk_bytes)
        return 2 * readers.window_bytes(packed, all_chunks, self.window_chunks)

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


def _fitting_mib(starts: orders.Records, needed: int) -> float | None:
    """A size of chunks, of two digits, with which there are so many; None where there are too few records."""
    if len(starts) - 1 < needed:
        return None
    mib = int(starts[-1]) / needed / 2**20
    while len(orders.chunks(starts, max(1, round(float(f"{mib:.2g}") * 2**20)))) < needed:
        mib *= 0.9
    return float(f"{mib:.2g}")
