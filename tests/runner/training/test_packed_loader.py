"""Batches that are read are those by index in the reader's order, for ranks that share a reader too."""

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from runs import Blobs

from daso_bench.datasets.packed.feeder import Feeder
from daso_bench.datasets.sampler import Sampler
from daso_bench.runner.communication.traffic import CountedCommunicator
from daso_bench.runner.config.reader_config import Block, ChunkedShuffle, NodeBatch, PackedReader, Strided
from daso_bench.runner.training.loader import Images, Loader
from daso_bench.runner.training.packed_loader import PackedLoader, ReaderOrder
from daso_bench.runner.training.packed_set import PackedSet, open_set, write_set
from daso_bench.strategies.base import Shares
from daso_bench.strategies.errors import ConfigError
from daso_bench.strategies.progress import Progress
from daso_bench.strategies.topology import Topology

DATA, EPOCHS, BATCH = Blobs(), 3, 20
"""96 samples: 5 steps an epoch, the last of 16. Not changed at random: threads share torch's generator."""
NODES = (3, 1)
READERS: list[PackedReader] = [
    Strided(),
    Block(),
    NodeBatch(),
    NodeBatch(prefetch_batches=1),
    ChunkedShuffle(chunk_mib=300 / 2**20, window_chunks=2),
]


class Together:
    """What the ranks of a node, as threads, say to each other."""

    def __init__(self, ranks: int) -> None:
        self.barrier, self.said = threading.Barrier(ranks), ""


class Rank:
    """As much of a communicator as a loader uses."""

    def __init__(self, rank: int, node: Together) -> None:
        self.topology, self.rank = Topology.of(NODES), rank
        self.node, self.local_rank = self.topology.node_of_rank[rank], self.topology.local_ranks[rank]
        self._together = node

    def broadcast_text(self, text: str, group: object) -> str:
        if self.local_rank == 0:
            self._together.said = text
        self._together.barrier.wait(20)
        return self._together.said

    def barrier(self, group: object) -> None:
        self._together.barrier.wait(20)


@pytest.fixture
def open_file(tmp_path: Path) -> Callable[[PackedReader], tuple[PackedReader, PackedSet]]:
    """Opens the packed file of DATA for a reader."""

    def opened(reader: PackedReader) -> tuple[PackedReader, PackedSet]:
        reader = replace(reader, path=str(tmp_path / "blobs.packed"))
        data = DATA.load()
        write_set(DATA, reader, data, lambda done, total: None)
        return reader, open_set(DATA, reader, data)

    return opened


def order_of(
    rank: int, reader: PackedReader, opened: PackedSet, nodes: tuple[int, ...] = NODES
) -> ReaderOrder:
    return ReaderOrder(Sampler(96, BATCH, 4, seed=1), rank, nodes, reader, opened, 9)


def loader_of(order: ReaderOrder, node: Together) -> PackedLoader:
    """A loader that is connected to those of its node."""
    comm = cast(CountedCommunicator, Rank(order.rank, node))
    loader = PackedLoader(order, DATA.load().train, 5, comm)
    loader.on_prepared(None, None)
    return loader


def walk(order: ReaderOrder, loader: Loader, changes: dict[int, Shares], start: int = 0) -> list[Images]:
    """The batches of all steps from `start` on; shares change before the epochs that `changes` names."""
    progress = Progress(EPOCHS, order.sampler.steps_per_epoch)
    progress.epoch, progress.batch = divmod(start, progress.steps_per_epoch)
    order.shares = next((changes[e] for e in range(progress.epoch, -1, -1) if e in changes), None)
    loaded = []
    while progress.epoch < EPOCHS:
        loaded.append(loader.next(progress))
        if order.advance(progress):
            progress.epoch, progress.batch = progress.epoch + 1, 0
            if progress.epoch in changes:
                order.shares = changes[progress.epoch]
                loader.restart()
    loader.close()
    return loaded


def of_rank(
    rank: int, node: Together, reader: PackedReader, opened: PackedSet, changes: dict[int, Shares], start: int
) -> tuple[list[Images], list[Images], PackedLoader]:
    """What a rank reads, and what it takes by index in the same order."""
    reading, by_index = (order_of(rank, reader, opened) for _ in range(2))
    loader = loader_of(reading, node)
    loaded = walk(reading, loader, changes, start)
    return loaded, walk(by_index, Loader(DATA.load().train, by_index, 5), changes, start), loader


def all_ranks(
    reader: PackedReader, opened: PackedSet, changes: dict[int, Shares] | None = None, start: int = 0
) -> list[tuple[list[Images], list[Images], PackedLoader]]:
    nodes = [Together(ranks) for ranks in NODES]
    with ThreadPoolExecutor(4) as pool:
        ranks = [
            pool.submit(of_rank, rank, nodes[rank // 3], reader, opened, changes or {}, start)
            for rank in range(4)
        ]
        return [rank.result() for rank in ranks]


@pytest.mark.parametrize("reader", READERS, ids=lambda reader: f"{reader.name}{reader.prefetch_batches}")
@pytest.mark.parametrize(
    ("changes", "start"),
    [({}, 0), ({1: Shares((10, 3, 2, 5))}, 0), ({0: Shares((4, 6, 6, 4)), 2: Shares((10, 7, 2, 1))}, 8)],
    ids=["equal", "new shares in an epoch", "shares, from inside an epoch on"],
)
def test_every_rank_reads_what_it_would_take_by_index(
    open_file: Any, reader: PackedReader, changes: dict[int, Shares], start: int
) -> None:
    reader, opened = open_file(reader)
    ranks = all_ranks(reader, opened, changes, start)
    useful = 0
    for loaded, expected, loader in ranks:
        assert len(loaded) == len(expected) == EPOCHS * 5 - start
        for ours, theirs in zip(loaded, expected, strict=True):
            assert torch.equal(ours[0], theirs[0])
            assert torch.equal(ours[1], theirs[1])
        counters = loader.counters()
        useful += counters.useful_bytes
        assert counters.useful_bytes == sum(images.nbytes for images, _ in loaded)
        assert counters.waited_s > 0
        assert (counters.reads > 0) == (not reader.by_node or loader._comm.local_rank == 0)
    steps = EPOCHS * 5 - start
    assert useful == (96 * EPOCHS - (start // 5 * 96 + start % 5 * BATCH)) * 64
    assert steps == len(ranks[0][0])


def test_chunks_of_which_there_are_few_a_node_are_refused_and_one_node_takes_any(open_file: Any) -> None:
    reader, opened = open_file(ChunkedShuffle())
    with pytest.raises(
        ConfigError,
        match=r"^reader\.chunk_mib=4: makes 1 chunks of .* 4 nodes need 16 \(4 each\); take smaller chunks",
    ):
        order_of(0, reader, opened, (1, 1, 1, 1))
    fitting = replace(reader, chunk_mib=300 / 2**20)
    order = order_of(0, fitting, opened, (1, 1, 1, 1))
    taken = [
        torch.cat([piece for (number, _), piece in order.upcoming(Progress(2, 5)) if number == epoch])
        for epoch in (0, 1)
    ]
    assert {*taken[0].tolist()} != {*taken[1].tolist()}
    order_of(0, reader, opened, (4,))


def test_the_reader_is_held_while_training_pauses(open_file: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a feeder that is held does not do: datasets/packed/test_feeder.py."""
    order = order_of(3, *open_file(Block()))
    loader, progress, held = loader_of(order, Together(1)), Progress(EPOCHS, 5), list[bool]()
    loader.on_pause()
    loader.next(progress)  # makes the feeder
    hold = Feeder.hold
    monkeypatch.setattr(Feeder, "hold", lambda feeder, on: (held.append(on), hold(feeder, on)))
    loader.on_pause()
    loader.on_train_start()
    assert held == [True, False]
    loader.close()


def of_one_rank(reader: PackedReader, opened: PackedSet) -> PackedLoader:
    """The loader of a rank that is a node by itself."""
    loader = loader_of(order_of(3, reader, opened), Together(1))
    loader.close()
    return loader


def test_the_cache_is_looked_at_before_training_and_made_as_it_is_asked_for(open_file: Any) -> None:
    plain, opened = open_file(Block())
    assert of_one_rank(replace(plain, warm=True), opened).still_cached == 1
    assert of_one_rank(plain, opened).still_cached == 1, "looked at, not dropped"
    cold = of_one_rank(replace(plain, cold=True), opened)
    assert cold.still_cached == cold.lacking == 0
    assert of_one_rank(plain, opened).still_cached == 0, "looked at, not read"
    warm = of_one_rank(replace(plain, warm=True), opened)
    assert (warm.still_cached, warm.lacking) == (1, 0)


def test_counting_goes_on_where_a_checkpoint_was_and_with_no_other_file(open_file: Any) -> None:
    reader, opened = open_file(Block())
    order = order_of(0, reader, opened)
    loader = PackedLoader(order, DATA.load().train, 5, cast(CountedCommunicator, Rank(0, Together(2))))
    loader.load_state_dict({**loader.state_dict(0), "useful_bytes": 640, "waited_s": 1.5})
    assert (loader.counters().useful_bytes, loader.counters().waited_s) == (640, 1.5)
    order.load_state_dict(order.state_dict())
    with pytest.raises(
        ConfigError, match=r"blobs\.packed: is another file \(of samples .*\) than the run began"
    ):
        order.load_state_dict({"source": "0" * 32})
