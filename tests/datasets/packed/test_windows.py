"""Windows of `chunked_shuffle` are read ahead of their use, also where an epoch ends."""

import time
from collections.abc import Callable
from pathlib import Path

import pytest

from daso_bench.datasets.packed.counters import Tally
from daso_bench.datasets.packed.loads import Stretch
from daso_bench.datasets.packed.orders import Epoch
from daso_bench.datasets.packed.packed_file import Packed
from daso_bench.datasets.packed.readers import chunked_shuffle

RECORDS, SIZE, BATCH = 60, 12, 10


@pytest.mark.parametrize("window_chunks", [1, 4, 100], ids=["many windows", "two windows", "one window"])
@pytest.mark.parametrize("start", [0, 4])
def test_the_next_epochs_first_window_is_read_before_the_last_steps_of_this_one(
    make_packed: Callable[..., Path], window_chunks: int, start: int
) -> None:
    epoch = Epoch(batch=BATCH, steps=6, full=(BATCH,), last=(BATCH,), ranks_of_nodes=(1,))
    stretches = [Stretch(number=0, epoch=epoch, step=start), Stretch(number=1, epoch=epoch)]
    tally = Tally()
    with Packed(make_packed(RECORDS, SIZE)) as packed:
        reader = chunked_shuffle(
            packed, stretches, 0, tally, seed=3, chunk_bytes=120, window_chunks=window_chunks
        )
        for _ in range(start, epoch.steps):  # of the last step a window is in use still
            next(reader).fill(memoryview(bytearray(BATCH * SIZE)))
        of_this = max(RECORDS - start * BATCH, min(window_chunks * 10, RECORDS)) * SIZE
        since = time.monotonic()
        while tally.counters().requested_bytes <= of_this and time.monotonic() - since < 5:
            time.sleep(0.001)
        assert tally.counters().requested_bytes > of_this
        reader.close()
