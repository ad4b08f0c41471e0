"""Real readers over any nodes, shares, epochs and places to begin: promised order, its bytes, a resume."""

import multiprocessing
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from daso_bench.datasets.packed import orders, pieces
from daso_bench.datasets.packed.counters import Tally
from daso_bench.datasets.packed.feeding import Feeder, Member
from daso_bench.datasets.packed.loads import Reader, Stretch
from daso_bench.datasets.packed.orders import Epoch
from daso_bench.datasets.packed.packed_file import Packed
from daso_bench.datasets.packed.pieces import Chunked, InFileOrder, Pieces
from daso_bench.datasets.packed.readers import block, chunked_shuffle, node_batch
from daso_bench.datasets.packed.slots import Geometry
from daso_bench.datasets.packed.strided import strided
from daso_bench.datasets.sampler import Sampler

LAYOUTS = ("strided", "announced", "block", "node_batch", "chunked_shuffle")
BY_NODE = ("node_batch", "chunked_shuffle")
SEED, CHUNK_BYTES, WINDOW_CHUNKS = 5, 40, 2
Step = tuple[int, int, int]
"""Epoch, step, rank."""


@dataclass(frozen=True, kw_only=True)
class Drawn:
    """Two or three epochs with shares of their own; the epoch and the step in which a resume begins."""

    samples: int
    left_out: int
    many_sizes: bool
    stretches: list[Stretch]
    again: tuple[int, int]


@st.composite
def runs(draw: st.DrawFn) -> Drawn:
    """See `Drawn`."""
    nodes = tuple(draw(st.lists(st.integers(1, 3), min_size=1, max_size=3)))
    ranks = sum(nodes)
    samples = draw(st.sampled_from([size for size in (9, 23, 53, 96) if size >= ranks]))
    batch = draw(st.integers(ranks, 30))
    short = draw(st.sampled_from(["join", "keep"] + ["drop"] * (batch <= samples)))
    sampler = Sampler(samples, batch, ranks, 0, short_batch=short)
    shares = st.none() | st.lists(st.floats(0.05, 20), min_size=ranks, max_size=ranks)
    stretches = [
        Stretch(number=number, epoch=Epoch.of(sampler, nodes, draw(shares)))
        for number in range(draw(st.integers(2, 3)))
    ]
    step = draw(st.integers(0, sampler.steps_per_epoch - 1))
    return Drawn(
        samples=samples,
        left_out=sampler.left_out,
        many_sizes=draw(st.booleans()),
        stretches=stretches,
        again=(draw(st.integers(0, len(stretches) - 1)), step),
    )


def order_of(layout: str, packed: Packed) -> Pieces:
    """The order that a layout promises."""
    if layout == "chunked_shuffle":
        return Chunked(orders.chunks(packed.starts(), CHUNK_BYTES), SEED, WINDOW_CHUNKS)
    by_name = {"block": pieces.block, "node_batch": pieces.node_batch}
    return InFileOrder(by_name.get(layout, orders.strided))


def reader_of(layout: str, packed: Packed, stretches: list[Stretch], place: int, tally: Tally) -> Reader:
    """The reader of rank or node `place`."""
    if layout == "chunked_shuffle":
        keys = {"seed": SEED, "chunk_bytes": CHUNK_BYTES, "window_chunks": WINDOW_CHUNKS}
        return chunked_shuffle(packed, stretches, place, tally, **keys)
    if layout in ("strided", "announced"):
        return strided(packed, stretches, place, tally, threads=layout == "strided")
    return (block if layout == "block" else node_batch)(packed, stretches, place, tally)


def read(layout: str, packed: Packed, stretches: list[Stretch]) -> dict[Step, tuple[list[int], bytes]]:
    """What every rank gets of all steps, from its feeder: numbers of records, and their bytes."""
    first, found = stretches[0].epoch, dict[Step, tuple[list[int], bytes]]()
    for place in range(len(first.ranks_of_nodes) if layout in BY_NODE else len(first.full)):
        ranks = list(first.members(place)) if layout in BY_NODE else [place]
        lines = [cast(tuple[Connection, Connection], multiprocessing.Pipe()) for _ in ranks]
        tally = Tally()
        source = reader_of(layout, packed, stretches, place, tally)
        with Feeder(packed, source, [ours for ours, _ in lines], Geometry.of(packed, 96), tally) as feeder:
            members = [Member(theirs) for _, theirs in lines]
            for parts in zip(*members, strict=True):
                for rank, part in zip(ranks, parts, strict=True):
                    found[part.number, part.step, rank] = part.records.tolist(), part.content.tobytes()
            feeder.join()
        for member in members:
            member.close()
        useful = sum(len(content) for (_, _, rank), (_, content) in found.items() if rank in ranks)
        assert feeder.counters.useful_bytes == useful
    return found


@pytest.mark.parametrize("layout", LAYOUTS)
@settings(max_examples=40, deadline=None)
@given(drawn=runs())
def test_every_step_of_every_rank_is_the_one_promised_wherever_reading_begins(
    make_packed: Callable[..., Path], layout: str, drawn: Drawn
) -> None:
    samples, stretches = drawn.samples, drawn.stretches
    sizes = tuple(1 + 7 * place % 23 for place in range(samples)) if drawn.many_sizes else ()
    path = make_packed(samples, 12, sizes)
    with Packed(path) as packed:
        whole, order = read(layout, packed, stretches), order_of(layout, packed)
        content, starts = path.read_bytes()[4096:], packed.starts().tolist()
        for (number, step, rank), (records, found) in whole.items():
            assert records == order.of(stretches[number].epoch, number, rank, step).tolist()
            assert found == b"".join(content[starts[record] : starts[record + 1]] for record in records)
        for stretch in stretches:
            seen = [record for key in whole if key[0] == stretch.number for record in whole[key][0]]
            assert len(set(seen)) == len(seen) == samples - drawn.left_out
        number, step = drawn.again
        rest = [Stretch(number=number, epoch=stretches[number].epoch, step=step), *stretches[number + 1 :]]
        assert read(layout, packed, rest) == {key: whole[key] for key in whole if key[:2] >= drawn.again}
