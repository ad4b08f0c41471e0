"""Readers of all layouts: promised order, its bytes, a resume; what they ask of the system, and when."""

import multiprocessing
import os
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from daso_bench.datasets.packed import readers, record_order
from daso_bench.datasets.packed.feeder import Feeder, FeederGone, Geometry, Member
from daso_bench.datasets.packed.packed_file import Packed
from daso_bench.datasets.packed.readers import (
    Counters,
    CounterTally,
    Reader,
    chunked_shuffle,
    read_runs,
)
from daso_bench.datasets.packed.record_order import Epoch, EpochSlice, RecordOrder, chunked_order
from daso_bench.datasets.sampler import Sampler

MakePacked = Callable[..., Path]
LAYOUTS = ("strided", "block", "node_batch", "chunked_shuffle")
BY_NODE = ("node_batch", "chunked_shuffle")
SEED, CHUNK_BYTES, WINDOW_CHUNKS = 5, 40, 2
SIZES = tuple(1 + (7 * place) % 23 for place in range(53))
Step = tuple[int, int, int]
"""Epoch, step, rank."""


@dataclass(frozen=True, kw_only=True)
class Drawn:
    """Two or three epochs with shares of their own; the epoch and the step in which a resume begins."""

    samples: int
    left_out: int
    many_sizes: bool
    slices: list[EpochSlice]
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
    slices = [
        EpochSlice(number=number, epoch=Epoch.of(sampler, nodes, draw(shares)))
        for number in range(draw(st.integers(2, 3)))
    ]
    step = draw(st.integers(0, sampler.steps_per_epoch - 1))
    return Drawn(
        samples=samples,
        left_out=sampler.left_out,
        many_sizes=draw(st.booleans()),
        slices=slices,
        again=(draw(st.integers(0, len(slices) - 1)), step),
    )


def order_of(layout: str, packed: Packed) -> RecordOrder:
    """The order that a layout promises."""
    if layout == "chunked_shuffle":
        return chunked_order(record_order.chunks(packed.starts(), CHUNK_BYTES), SEED, WINDOW_CHUNKS)
    return getattr(record_order, layout)


def reader_of(
    layout: str, packed: Packed, slices: list[EpochSlice], place: int, tally: CounterTally
) -> Reader:
    """The reader of rank or node `place`."""
    if layout == "chunked_shuffle":
        keys = {"seed": SEED, "chunk_bytes": CHUNK_BYTES, "window_chunks": WINDOW_CHUNKS}
        return chunked_shuffle(packed, slices, place, tally, **keys)
    return getattr(readers, layout)(packed, slices, place, tally)


def went_through(
    layout: str, packed: Packed, slices: list[EpochSlice], place: int
) -> tuple[dict[Step, tuple[list[int], bytes]], Counters]:
    """What the ranks of reader `place` get of all steps: numbers of records, and their bytes; counters."""
    found = dict[Step, tuple[list[int], bytes]]()
    ranks = list(slices[0].epoch.members(place)) if layout in BY_NODE else [place]
    pipes = [cast(tuple[Connection, Connection], multiprocessing.Pipe()) for _ in ranks]
    tally = CounterTally()
    source = reader_of(layout, packed, slices, place, tally)
    with Feeder(packed, source, [ours for ours, _ in pipes], Geometry.of(packed, 96), tally) as feeder:
        members = [Member(theirs) for _, theirs in pipes]
        for parts in zip(*members, strict=True):
            for rank, part in zip(ranks, parts, strict=True):
                found[part.number, part.step, rank] = part.records.tolist(), part.content.tobytes()
                assert part.labels.tolist() == [record % 7 for record in part.records.tolist()]
                assert b"".join(part.record(i).tobytes() for i in range(len(part))) == part.content.tobytes()
        for member in members:
            member.close()
        feeder.join()
    return found, feeder.counters


def read(layout: str, packed: Packed, slices: list[EpochSlice]) -> dict[Step, tuple[list[int], bytes]]:
    """What every rank gets of all steps, from its feeder: numbers of records, and their bytes."""
    first, found = slices[0].epoch, dict[Step, tuple[list[int], bytes]]()
    for place in range(len(first.ranks_of_nodes) if layout in BY_NODE else len(first.full)):
        of_place, counters = went_through(layout, packed, slices, place)
        assert counters.useful_bytes == sum(len(content) for _, content in of_place.values())
        assert counters.requested_bytes >= counters.useful_bytes
        assert counters.jumps <= counters.reads
        found |= of_place
    return found


@pytest.mark.parametrize("layout", LAYOUTS)
@settings(max_examples=40, deadline=None)
@given(drawn=runs())
def test_every_step_of_every_rank_is_the_one_promised_wherever_reading_begins(
    make_packed: MakePacked, layout: str, drawn: Drawn
) -> None:
    samples, slices = drawn.samples, drawn.slices
    sizes = tuple(1 + 7 * place % 23 for place in range(samples)) if drawn.many_sizes else ()
    path = make_packed(samples, 12, sizes)
    with Packed(path) as packed:
        whole, order = read(layout, packed, slices), order_of(layout, packed)
        content, starts = path.read_bytes(), packed.starts().tolist()
        for (number, step, rank), (records, found) in whole.items():
            assert records == order(slices[number].epoch, number, rank, step).tolist()
            assert found == b"".join(content[starts[record] : starts[record + 1]] for record in records)
        for part in slices:
            seen = [record for key in whole if key[0] == part.number for record in whole[key][0]]
            assert len(set(seen)) == len(seen) == samples - drawn.left_out
        number, step = drawn.again
        rest = [EpochSlice(number=number, epoch=slices[number].epoch, step=step), *slices[number + 1 :]]
        assert read(layout, packed, rest) == {key: whole[key] for key in whole if key[:2] >= drawn.again}


def test_jumps_are_counted_as_h13_counts_them(make_packed: MakePacked) -> None:
    slices = [EpochSlice(number=0, epoch=Epoch.of(Sampler(48, 9, 3, 0), (2, 1)))]
    with Packed(make_packed(48)) as packed:
        jumps = {
            layout: [went_through(layout, packed, slices, place)[1].jumps for place in range(2)]
            for layout in ("strided", "block", "node_batch")
        }
        for layout, ranks in (("node_batch", 3), ("strided", 1)):
            alone = [EpochSlice(number=0, epoch=Epoch.of(Sampler(48, 9, ranks, 0), (ranks,)))]
            assert went_through(layout, packed, alone, 0)[1].jumps == 1
    assert jumps == {"strided": [16, 16], "block": [1, 1], "node_batch": [5, 5]}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_damaged_record_ends_every_members_waiting_with_its_name(
    tmp_path: Path, make_packed: MakePacked, layout: str
) -> None:
    content = bytearray(make_packed(53).read_bytes())
    content[30 * 12] ^= 1
    path = tmp_path / "set.packed"
    path.write_bytes(content)
    slices = [EpochSlice(number=0, epoch=Epoch.of(Sampler(53, 9, 3, 0), (2, 1)))]
    reason = r"set\.packed: record 30, byte 360: checksum is wrong"
    with Packed(path) as packed, pytest.raises(FeederGone, match=reason):
        read(layout, packed, slices)


class Calls:
    """Bytes of a file of which the system was told, and those read before it was."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.announced, self.read, self.unannounced = set[int](), set[int](), set[int]()
        self._advise, self._preadv = os.posix_fadvise, os.preadv
        monkeypatch.setattr(os, "posix_fadvise", self.advise)
        monkeypatch.setattr(os, "preadv", self.preadv)

    def advise(self, descriptor: int, offset: int, size: int, advice: int) -> None:
        """`os.posix_fadvise`."""
        if advice == os.POSIX_FADV_WILLNEED:
            assert size, "for the system 0 bytes are all there are"
            self.announced |= {*range(offset, offset + size)}
        self._advise(descriptor, offset, size, advice)

    def preadv(self, descriptor: int, into: list[memoryview], offset: int) -> int:
        """`os.preadv`."""
        got = self._preadv(descriptor, into, offset)
        bytes_read = {*range(offset, offset + got)}
        self.read |= bytes_read
        self.unannounced |= bytes_read - self.announced
        return got


@pytest.mark.skipif(not hasattr(os, "posix_fadvise"), reason="the system takes no advice")
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("sizes", [(), SIZES], ids=["one size", "many sizes"])
def test_every_byte_is_announced_before_it_is_read(
    make_packed: MakePacked, monkeypatch: pytest.MonkeyPatch, layout: str, sizes: tuple[int, ...]
) -> None:
    epoch = Epoch.of(Sampler(53, 9, 3, 0), (2, 1))
    slices = [EpochSlice(number=number, epoch=epoch) for number in (0, 1)]
    with Packed(make_packed(53, 12, sizes)) as packed:
        calls, wanted = Calls(monkeypatch), set[int]()
        for load in reader_of(layout, packed, slices, 0, CounterTally()):
            load.fill(memoryview(bytearray(9 * 23)))
            for record in load.records.tolist():
                first = packed.start_of(record)
                wanted |= {*range(first, first + packed.size_of(record, 1))}
    assert calls.read == wanted
    assert calls.unannounced == set()


@pytest.mark.parametrize("window_chunks", [1, 4, 100], ids=["many windows", "two windows", "one window"])
@pytest.mark.parametrize("start", [0, 4])
def test_the_next_epochs_first_window_is_read_before_the_last_steps_of_this_one(
    make_packed: MakePacked, window_chunks: int, start: int
) -> None:
    epoch = Epoch(batch=10, steps=6, full=(10,), last=(10,), ranks_of_nodes=(1,))
    slices = [EpochSlice(number=0, epoch=epoch, step=start), EpochSlice(number=1, epoch=epoch)]
    tally = CounterTally()
    with Packed(make_packed(60, 12)) as packed:
        reader = chunked_shuffle(
            packed, slices, 0, tally, seed=3, chunk_bytes=120, window_chunks=window_chunks
        )
        for _ in range(start, epoch.steps):  # of the last step a window is in use still
            next(reader).fill(memoryview(bytearray(10 * 12)))
        of_this = max(60 - start * 10, min(window_chunks * 10, 60)) * 12
        since = time.monotonic()
        while tally.counters().requested_bytes <= of_this and time.monotonic() - since < 5:
            time.sleep(0.001)
        assert tally.counters().requested_bytes > of_this
        reader.close()


@pytest.mark.parametrize("worth", [60 * 12, 60 * 12 + 1], ids=["with the help of another thread", "alone"])
def test_the_bytes_of_runs_are_those_of_the_file_whether_another_thread_helps_or_not(
    make_packed: MakePacked, monkeypatch: pytest.MonkeyPatch, worth: int
) -> None:
    monkeypatch.setattr(readers, "WORTH_HELP_BYTES", worth)
    tally, into, path = CounterTally(), bytearray(60 * 12), make_packed(90)
    with Packed(path) as packed, ThreadPoolExecutor(1) as helper:
        size = read_runs(packed, [range(70, 90), range(5, 45)], memoryview(into), tally, helper)
    data = path.read_bytes()
    assert bytes(into) == data[70 * 12 : 90 * 12] + data[5 * 12 : 45 * 12]
    assert size == len(into) == tally.counters().requested_bytes
    assert (tally.counters().reads, tally.counters().jumps) == (2, 2)
