"""`reader=node_batch`: each node reads one run a step for all its ranks: batches as one process has them."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar

from ...datasets.packed import pieces, readers
from ...datasets.packed.counters import Tally
from ...datasets.packed.loads import Reader, Stretch
from ...datasets.packed.packed_file import Packed
from ...datasets.packed.pieces import InFileOrder, Pieces
from .base import PackedReader


@dataclass(frozen=True, kw_only=True)
class NodeBatch(PackedReader):
    """The batches are those of sequential order, for any nodes and ranks."""

    name: ClassVar[str] = "node_batch"
    by_node: ClassVar[bool] = True

    def pieces(self, packed: Packed, seed: int) -> Pieces:
        """See `PackedReader`."""
        return InFileOrder(pieces.node_batch)

    def read(
        self, packed: Packed, stretches: Iterable[Stretch], place: int, tally: Tally, seed: int
    ) -> Reader:
        """See `PackedReader`."""
        return readers.node_batch(packed, stretches, place, tally)
