"""What readers will hold in memory is told before a run, and refused where the machine has less."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import psutil
import pytest
from runs import Blobs, config

from daso_bench.runner.readers import packed_set
from daso_bench.runner.readers.packed_set import memory_needed, write_set
from daso_bench.runner.readers.reader_config import ChunkedShuffle, NodeBatch, PackedReader, Strided
from daso_bench.strategies.errors import ConfigError

RECORD, LINE = 64 + 3 * 8, 64  # bytes of an image and its numbers; of a cache line
LOTS = 3 * 16 * 2**20


class Machine(NamedTuple):
    total: int


@pytest.fixture
def told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., str | None]:
    """What is told of 1.6 million samples a step on ranks [3, 1], on a machine that has so many bytes."""
    path = str(tmp_path / "blobs.packed")
    write_set(Blobs(), NodeBatch(path=path), Blobs().load(), lambda done, total: None)

    def words(reader: PackedReader, has: int = 10**12, least: int = 0, **keys: Any) -> str | None:
        monkeypatch.setattr(packed_set, "MUCH_MEMORY_BYTES", least)
        monkeypatch.setattr(psutil, "virtual_memory", lambda: Machine(has))
        run = config(ranks=[3, 1], **keys)
        run = replace(run, train=replace(run.train, global_batch_size=16 * 10**5))
        return memory_needed(replace(run, reader=replace(reader, path=path)))

    return words


@pytest.mark.parametrize(
    ("reader", "readers", "records", "own"),
    [
        (NodeBatch(), 2, 12 * 10**5, 0),
        (NodeBatch(prefetch_batches=9), 2, 12 * 10**5, 0),
        (Strided(), 4, 4 * 10**5, 0),
        (Strided(threads=True), 4, 4 * 10**5, 0),
        (ChunkedShuffle(), 2, 12 * 10**5, 2 * 96 * 64),
        (ChunkedShuffle(chunk_mib=640 / 2**20, window_chunks=3), 2, 12 * 10**5, 2 * 30 * 64),
    ],
)
def test_what_each_reader_holds_is_its_slots_and_windows_and_is_told_where_it_is_much(
    told: Callable[..., str | None], reader: PackedReader, readers: int, records: int, own: int
) -> None:
    slots = (reader.prefetch_batches + 1) * -(-records * RECORD // LINE) * LINE
    words = f"reader={reader.name}: {readers} on a machine, each up to {(slots + own) / 1e6:.0f} MB for what"
    assert (told(reader) or "").startswith(words)
    assert told(reader, least=slots + own) is None
    assert told(reader, least=slots + own - 1) is not None
    assert told(reader, has=readers * (slots + own)) is not None
    with pytest.raises(ConfigError, match=r"more than the .* MB that this one has; a smaller train"):
        told(reader, has=readers * (slots + own) - 1)


def test_lots_of_small_steps_are_three_and_large_steps_have_none() -> None:
    assert Strided(threads=True).own_bytes(None, 2**20) == LOTS  # pyright: ignore[reportArgumentType]
    assert Strided(threads=True).own_bytes(None, 16 * 2**20) == 0  # pyright: ignore[reportArgumentType]
    assert Strided().own_bytes(None, 2**20) == 0  # pyright: ignore[reportArgumentType]


def test_nothing_is_told_of_a_run_without_a_reader() -> None:
    assert memory_needed(config()) is None
