"""The order alone is the order of the readers."""

from collections.abc import Callable
from pathlib import Path

import pytest

from daso_bench.datasets.packed import orders, pieces, readers
from daso_bench.datasets.packed.counters import Tally
from daso_bench.datasets.packed.loads import Reader, Stretch
from daso_bench.datasets.packed.orders import Epoch
from daso_bench.datasets.packed.packed_file import Packed
from daso_bench.datasets.packed.pieces import Chunked, InFileOrder, Pieces
from daso_bench.datasets.packed.strided import strided
from daso_bench.datasets.sampler import Sampler

NODES, SAMPLES, BATCH = (2, 1), 53, 9
SIZES = tuple(1 + (7 * place) % 23 for place in range(SAMPLES))


def made(layout: str, packed: Packed, stretches: list[Stretch], place: int) -> tuple[Reader, Pieces]:
    """The reader of a rank or node, and the order of its layout."""
    tally = Tally()
    if layout == "strided":
        return strided(packed, stretches, place, tally), InFileOrder(orders.strided)
    if layout == "block":
        return readers.block(packed, stretches, place, tally), InFileOrder(pieces.block)
    if layout == "node_batch":
        return readers.node_batch(packed, stretches, place, tally), InFileOrder(pieces.node_batch)
    reader = readers.chunked_shuffle(packed, stretches, place, tally, seed=5, chunk_bytes=40, window_chunks=2)
    return reader, Chunked(orders.chunks(packed.starts(), 40), 5, 2)


@pytest.mark.parametrize("layout", ["strided", "block", "node_batch", "chunked_shuffle"])
def test_pieces_are_the_records_that_the_reader_gives_each_rank(
    make_packed: Callable[..., Path], layout: str
) -> None:
    epoch = Epoch.of(Sampler(SAMPLES, BATCH, 3, 0), NODES, (3.0, 1.0, 2.0))
    stretches = [Stretch(number=1, epoch=epoch, step=2), Stretch(number=2, epoch=epoch)]
    by_node = layout in ("node_batch", "chunked_shuffle")
    compared = 0
    with Packed(make_packed(sizes=SIZES)) as packed:
        for place in range(len(NODES) if by_node else 3):
            reader, order = made(layout, packed, stretches, place)
            ranks = epoch.members(place) if by_node else [place]
            for load in reader:
                first = 0
                for rank, count in zip(ranks, load.counts, strict=True):
                    own = load.records[first : first + count].tolist()
                    assert order.of(epoch, load.number, rank, load.step).tolist() == own
                    first += count
                    compared += 1
    assert compared == 3 * (2 * epoch.steps - 2)


def test_a_shuffled_file_has_each_sample_once_in_an_order_that_never_changes() -> None:
    assert orders.shuffled(5, None).tolist() == [0, 1, 2, 3, 4]
    assert sorted(orders.shuffled(1000, 0).tolist()) == list(range(1000))
    assert orders.shuffled(8, 0).tolist() == SHUFFLED  # pinned: files of before are of this order
    assert orders.shuffled(8, 1).tolist() != SHUFFLED


SHUFFLED = [1, 0, 6, 3, 4, 5, 7, 2]
