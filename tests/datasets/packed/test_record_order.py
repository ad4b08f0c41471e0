"""Order and coverage of every layout, for any ranks, nodes, shares, epochs and places to go on from."""

from collections.abc import Iterable

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from daso_bench.datasets.packed import record_order
from daso_bench.datasets.packed.record_order import Epoch
from daso_bench.datasets.sampler import Sampler

LAYOUTS = ("strided", "block", "node_batch")


@st.composite
def epochs(draw: st.DrawFn) -> tuple[Sampler, Epoch]:
    nodes = tuple(draw(st.lists(st.integers(1, 4), min_size=1, max_size=4)))
    ranks = sum(nodes)
    short = draw(st.sampled_from(["join", "keep", "drop"]))
    batch = draw(st.integers(ranks, 40))
    samples = draw(st.integers(batch if short == "drop" else ranks, 200))
    sampler = Sampler(samples, batch, ranks, 0, short_batch=short)
    shares = draw(st.none() | st.lists(st.floats(0.01, 50), min_size=ranks, max_size=ranks))
    return sampler, Epoch.of(sampler, nodes, shares)


def pieces(epoch: Epoch, layout: str, step: int) -> list[list[int]]:
    """Records by rank."""
    order = getattr(record_order, layout)
    return [order(epoch, 0, rank, step).tolist() for rank in range(len(epoch.full))]


def jumps(reads: Iterable[range]) -> int:
    """How many reads do not start where the one before ended; the first one counts."""
    end, count = -1, 0
    for run in reads:
        count += run.start != end
        end = run.stop
    return count


@given(epochs())
def test_node_batch_and_strided_have_the_batches_of_sequential_order(drawn: tuple[Sampler, Epoch]) -> None:
    sampler, epoch = drawn
    for step in range(epoch.steps):
        first = step * sampler.global_batch_size
        batch = list(range(first, first + sampler.sizes(step)))
        assert [record for piece in pieces(epoch, "node_batch", step) for record in piece] == batch
        assert sorted(r for piece in pieces(epoch, "strided", step) for r in piece) == batch
        for layout in LAYOUTS:
            assert tuple(len(piece) for piece in pieces(epoch, layout, step)) == epoch.sizes(step)


@given(drawn=epochs(), seed=st.integers(0, 2**63 - 1), number=st.integers(0, 9), chunk=st.integers(1, 60))
def test_dealt_chunks_cover_the_file_once_in_runs_of_each_nodes_size(
    drawn: tuple[Sampler, Epoch], seed: int, number: int, chunk: int
) -> None:
    sampler, epoch = drawn
    all_chunks = record_order.chunks(np.arange(sampler.samples + 1), chunk)
    dealt = record_order.deal(epoch, all_chunks, seed, number)
    for node, runs in enumerate(dealt):
        assert sum(map(len, runs)) == epoch.node_before(node, epoch.steps)
        assert all(runs)
    records = [record for runs in dealt for record in record_order.records_of(runs).tolist()]
    assert len(records) == len(set(records)) == sampler.samples - sampler.left_out
    if not sampler.left_out:
        assert sorted(records) == list(range(sampler.samples))
    assert sum(map(jumps, dealt)) <= len(all_chunks) + len(dealt) - 1


@given(st.lists(st.integers(1, 50), min_size=1, max_size=60), st.integers(1, 100))
def test_chunks_are_whole_records_that_begin_near_each_other(sizes: list[int], chunk_bytes: int) -> None:
    starts = np.concatenate([[0], np.cumsum(sizes)])
    cut = record_order.chunks(starts, chunk_bytes)
    assert record_order.records_of(cut).tolist() == list(range(len(sizes)))
    for run in cut:
        assert starts[run.stop] - starts[run.start] < chunk_bytes + max(sizes)


def test_h13_by_hand() -> None:
    """48 records, 2 nodes of 2 ranks, 3 records a rank and step."""
    epoch = Epoch.of(Sampler(48, 12, 4, 0), (2, 2))
    steps = [{layout: pieces(epoch, layout, step) for layout in LAYOUTS} for step in range(4)]
    single = 0
    for rank in range(4):
        one_by_one = [record for step in steps for record in step["strided"][rank]]
        assert one_by_one == list(range(rank, 48, 4))
        single += jumps(range(record, record + 1) for record in one_by_one)
        whole = [record for step in steps for record in step["block"][rank]]
        assert whole == list(range(12 * rank, 12 * rank + 12))
        for number, step in enumerate(steps):
            first = number * 12 + 3 * rank
            assert step["node_batch"][rank] == list(range(first, first + 3))
    assert single == 48


def test_chunk_order_is_pinned_and_differs_by_epoch_and_seed() -> None:
    epoch = Epoch.of(Sampler(12, 4, 2, 0), (1, 1))
    cut = record_order.chunks(np.arange(13), 2)

    def firsts(seed: int, number: int) -> list[list[int]]:
        return [[run.start for run in runs] for runs in record_order.deal(epoch, cut, seed, number)]

    assert firsts(1, 0) == firsts(1, 0)
    assert len({str(firsts(seed, number)) for seed in range(3) for number in range(3)}) > 6
    assert firsts(7, 0) == [[10, 8, 4], [6, 0, 2]]


def test_a_shuffled_file_has_each_sample_once_in_an_order_that_never_changes() -> None:
    assert record_order.shuffled(5, None).tolist() == [0, 1, 2, 3, 4]
    assert sorted(record_order.shuffled(1000, 0).tolist()) == list(range(1000))
    pinned = [1, 0, 6, 3, 4, 5, 7, 2]  # earlier files are of this order
    assert record_order.shuffled(8, 0).tolist() == pinned
    assert record_order.shuffled(8, 1).tolist() != pinned
