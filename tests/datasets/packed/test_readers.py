"""Readers and feeder together: the right bytes to the right rank, counted; every crash ends the waiting."""

import gc
import multiprocessing
import os
import signal
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import cast

import pytest

from daso_bench.datasets.packed.counters import Counters, Tally
from daso_bench.datasets.packed.feeding import Feeder, FeederGone, Member
from daso_bench.datasets.packed.loads import Reader, Stretch
from daso_bench.datasets.packed.orders import Epoch
from daso_bench.datasets.packed.packed_file import Packed
from daso_bench.datasets.packed.readers import block, chunked_shuffle, node_batch
from daso_bench.datasets.packed.slots import Geometry
from daso_bench.datasets.packed.strided import strided
from daso_bench.datasets.sampler import Sampler

MakePacked = Callable[..., Path]
BY_RANK = ("strided", "announced", "block")
BY_NODE = ("node_batch", "chunked_shuffle")
SIZES = tuple(1 + (7 * place) % 23 for place in range(53))
NODES, BATCH = (2, 1), 9


def line() -> tuple[Connection, Connection]:
    """The two ends of a line; on Windows they would be others."""
    return cast(tuple[Connection, Connection], multiprocessing.Pipe())


def made(layout: str, packed: Packed, stretches: list[Stretch], place: int, tally: Tally) -> Reader:
    """The reader of rank or node `place`."""
    if layout == "chunked_shuffle":
        return chunked_shuffle(packed, stretches, place, tally, seed=5, chunk_bytes=40, window_chunks=2)
    if layout in ("strided", "announced"):
        return strided(packed, stretches, place, tally, threads=layout == "strided")
    return (block if layout == "block" else node_batch)(packed, stretches, place, tally)


def went_through(
    layout: str, path: Path, stretches: list[Stretch], place: int
) -> tuple[list[list[tuple[int, int, list[int]]]], Counters]:
    """By member: epoch, step and records, whose bytes and labels are compared with the file's; counters."""
    members = NODES[place] if layout in BY_NODE else 1
    lines = [line() for _ in range(members)]
    found: list[list[tuple[int, int, list[int]]]] = [[] for _ in lines]
    content = path.read_bytes()
    with Packed(path) as packed:
        tally, starts = Tally(), packed.starts()
        reader = made(layout, packed, stretches, place, tally)
        feeder = Feeder(packed, reader, [ours for ours, _ in lines], Geometry.of(packed, 20), tally)
        ends = [Member(theirs) for _, theirs in lines]
        for parts in zip(*ends, strict=True):
            for member, part in enumerate(parts):
                found[member].append((part.number, part.step, part.records.tolist()))
                for where, record in enumerate(part.records.tolist()):
                    own = content[4096 + starts[record] : 4096 + starts[record + 1]]
                    assert part.record(where).tobytes() == own
                    assert part.labels[where] == record % 7
        for member in ends:
            member.release()
            member.close()
        feeder.join()
    return found, feeder.counters


@pytest.mark.parametrize("sizes", [(), SIZES], ids=["one size", "many sizes"])
@pytest.mark.parametrize("layout", [*BY_RANK, *BY_NODE])
def test_all_ranks_together_get_each_record_once_an_epoch_and_a_resume_goes_on_alike(
    make_packed: MakePacked, layout: str, sizes: tuple[int, ...]
) -> None:
    path = make_packed(53, 12, sizes)
    epoch = Epoch.of(Sampler(53, BATCH, 3, 0), NODES, (3.0, 1.0, 2.0))
    both = [Stretch(number=0, epoch=epoch), Stretch(number=1, epoch=epoch)]
    places = range(len(NODES) if layout in BY_NODE else 3)
    by_epoch: list[list[int]] = [[], []]
    for place in places:
        whole, counters = went_through(layout, path, both, place)
        for seen in whole:
            for number, _, records in seen:
                by_epoch[number] += records
        resumed, _ = went_through(layout, path, [Stretch(number=1, epoch=epoch, step=3)], place)
        assert resumed == [[row for row in seen if row[0] == 1 and row[1] >= 3] for seen in whole]
        with Packed(path) as packed:
            wanted = sum(packed.size_of(r, 1) for seen in whole for _, _, records in seen for r in records)
        assert counters.useful_bytes == counters.requested_bytes == wanted
        assert 0 < counters.jumps <= counters.reads
    assert [sorted(records) for records in by_epoch] == [list(range(53))] * 2
    assert (by_epoch[0] == by_epoch[1]) == (layout != "chunked_shuffle")


def test_jumps_are_counted_as_h13_counts_them(make_packed: MakePacked) -> None:
    epoch = Epoch.of(Sampler(48, 9, 3, 0), NODES)
    stretches = [Stretch(number=0, epoch=epoch)]
    path = make_packed(48)
    jumps = {
        layout: [went_through(layout, path, stretches, place)[1].jumps for place in range(2)]
        for layout in ("strided", "announced", "block", "node_batch")
    }
    assert jumps == {"strided": [16, 16], "announced": [16, 16], "block": [1, 1], "node_batch": [5, 5]}


def test_a_damaged_record_ends_every_members_waiting_with_its_name(
    tmp_path: Path, make_packed: MakePacked
) -> None:
    content = bytearray(make_packed(53).read_bytes())
    content[4096 + 30 * 12] ^= 1
    path = tmp_path / "set.packed"
    path.write_bytes(content)
    stretches = [Stretch(number=0, epoch=Epoch.of(Sampler(53, BATCH, 3, 0), NODES))]
    for layout in (*BY_RANK, *BY_NODE):
        with pytest.raises(FeederGone, match=r"set\.packed: record 30, byte 4456: checksum is wrong"):
            [went_through(layout, path, stretches, place) for place in range(3)]


def feed_and_hang(path: Path, lines: list[Connection]) -> None:
    """A process with the feeder of node 0."""
    stretches = [Stretch(number=0, epoch=Epoch.of(Sampler(53, BATCH, 3, 0), NODES))]
    with Packed(path) as packed:
        tally = Tally()
        reader = node_batch(packed, stretches, 0, tally)
        Feeder(packed, reader, lines, Geometry.of(packed, 20), tally).join()


def test_a_feeder_that_is_killed_ends_the_waiting_of_its_members_and_leaves_nothing(
    make_packed: MakePacked,
) -> None:
    lines = [line() for _ in range(2)]
    before = set(os.listdir("/dev/shm")) if os.path.isdir("/dev/shm") else set()
    context = multiprocessing.get_context("spawn")
    feeder = context.Process(target=feed_and_hang, args=(make_packed(53), [ours for ours, _ in lines]))
    feeder.start()
    try:
        for ours, _ in lines:
            ours.close()
        members = [Member(theirs) for _, theirs in lines]
        first = [next(member) for member in members]
        assert feeder.pid is not None
        os.kill(feeder.pid, signal.SIGKILL)
        feeder.join()
        assert first[0].records.tolist() == [0, 1, 2]  # what a member has stays readable
        with pytest.raises(FeederGone, match="has ended"):
            list(members[0])  # steps that were ready before are still given out
    finally:
        feeder.kill()
        feeder.join()
    if os.path.isdir("/dev/shm"):
        assert not {name for name in set(os.listdir("/dev/shm")) - before if "daso-bench-reader" in name}


def test_a_member_that_leaves_early_ends_the_others_waiting(make_packed: MakePacked) -> None:
    lines = [line() for _ in range(2)]
    stretches = [Stretch(number=0, epoch=Epoch.of(Sampler(53, BATCH, 3, 0), NODES))]
    with Packed(make_packed(53)) as packed:
        tally = Tally()
        reader = node_batch(packed, stretches, 0, tally)
        with Feeder(packed, reader, [ours for ours, _ in lines], Geometry.of(packed, 20), tally) as feeder:
            stays, leaves = (Member(theirs) for _, theirs in lines)
            next(stays)
            next(leaves)
            leaves.close()
            with pytest.raises(FeederGone, match="member 1 of the node has ended after 0 steps"):
                for _ in stays:
                    pass
            with pytest.raises(FeederGone):
                feeder.join()


def test_closing_a_feeder_that_waits_for_its_members_ends_it(make_packed: MakePacked) -> None:
    ours, theirs = line()
    with Packed(make_packed(53)) as packed:
        tally = Tally()
        stretches = [Stretch(number=0, epoch=Epoch.of(Sampler(53, BATCH, 3, 0), NODES))]
        feeder = Feeder(packed, block(packed, stretches, 0, tally), [ours], Geometry.of(packed, 20), tally)
        member = Member(theirs)
        next(member)
        feeder.close()
        with pytest.raises(FeederGone):
            for _ in member:
                pass


@pytest.mark.parametrize("how", ["all done", "closed early", "a member left"])
def test_an_ended_feeder_holds_no_descriptor_though_it_is_kept(make_packed: MakePacked, how: str) -> None:
    path = make_packed(53)
    gc.collect()  # what tests before this one have left is closed now, not in the middle
    before = sorted(os.listdir("/proc/self/fd"))
    ours, theirs = line()
    with Packed(path) as packed:
        tally = Tally()
        stretches = [Stretch(number=0, epoch=Epoch.of(Sampler(53, BATCH, 3, 0), NODES))]
        feeder = Feeder(packed, block(packed, stretches, 0, tally), [ours], Geometry.of(packed, 20), tally)
        member = Member(theirs)
        if how == "all done":
            assert len(list(member)) > 1
        member.close()
        if how == "closed early":
            feeder.close()
        elif how == "a member left":
            with pytest.raises(FeederGone, match="member 0 of the node has ended"):
                feeder.join()
        else:
            feeder.join()
        feeder.close()  # a second time does nothing
    del member
    assert sorted(os.listdir("/proc/self/fd")) == before
    assert feeder.counters.reads > 0


def test_one_slot_is_refused(make_packed: MakePacked) -> None:
    with Packed(make_packed(53)) as packed, pytest.raises(ValueError, match="depth=1: must be >= 2"):
        Geometry.of(packed, 5, depth=1)
