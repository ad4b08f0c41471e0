"""`reader=strided`: the native way. Each rank reads its records, dealt in turn, one by one."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar

from ...datasets.packed import orders
from ...datasets.packed.counters import Tally
from ...datasets.packed.loads import Reader, Stretch
from ...datasets.packed.packed_file import Packed
from ...datasets.packed.pieces import InFileOrder, Pieces
from ...datasets.packed.strided import lots_bytes, strided
from .base import PackedReader


@dataclass(frozen=True, kw_only=True)
class Strided(PackedReader):
    """threads: 32 threads read; false: one thread announces its reads to the system, mostly faster."""

    name: ClassVar[str] = "strided"
    by_node: ClassVar[bool] = False
    of_reading: ClassVar[tuple[str, ...]] = ("prefetch_batches", "threads")

    threads: bool = False

    @property
    def random_access(self) -> bool:
        """Of single records what lies behind them is not wanted."""
        return True

    def pieces(self, packed: Packed, seed: int) -> Pieces:
        """See `PackedReader`."""
        return InFileOrder(orders.strided)

    def own_bytes(self, packed: Packed, step_bytes: int) -> int:
        """See `PackedReader`."""
        return lots_bytes(step_bytes) if self.threads else 0

    def read(
        self, packed: Packed, stretches: Iterable[Stretch], place: int, tally: Tally, seed: int
    ) -> Reader:
        """See `PackedReader`."""
        return strided(packed, stretches, place, tally, threads=self.threads)
