"""`reader=block`: each rank reads one run of the file an epoch, batch by batch."""

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
class Block(PackedReader):
    """A rank sees the same samples in every epoch; what they are depends on the number of ranks."""

    name: ClassVar[str] = "block"
    by_node: ClassVar[bool] = False

    def pieces(self, packed: Packed, seed: int) -> Pieces:
        """See `PackedReader`."""
        return InFileOrder(pieces.block)

    def read(
        self, packed: Packed, stretches: Iterable[Stretch], place: int, tally: Tally, seed: int
    ) -> Reader:
        """See `PackedReader`."""
        return readers.block(packed, stretches, place, tally)
