"""Runs of records from a file to memory."""

from collections.abc import Callable
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from daso_bench.datasets.packed import reading
from daso_bench.datasets.packed.counters import Tally
from daso_bench.datasets.packed.orders import Run
from daso_bench.datasets.packed.packed_file import Packed
from daso_bench.datasets.packed.reading import read_runs


class Counting(Executor):
    """Counts what it is asked to do, and does it."""

    def __init__(self) -> None:
        self.asked, self._pool = 0, ThreadPoolExecutor(1)

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        self.asked += 1
        return self._pool.submit(fn, *args, **kwargs)


@pytest.mark.parametrize("worth", [59 * 12, 60 * 12, 60 * 12 + 1])
def test_another_thread_helps_where_there_is_enough_to_read_and_the_bytes_are_the_same(
    make_packed: Callable[..., Path], monkeypatch: pytest.MonkeyPatch, worth: int
) -> None:
    monkeypatch.setattr(reading, "WORTH_HELP_BYTES", worth)
    helper, tally, into = Counting(), Tally(), bytearray(60 * 12)
    path = make_packed(90)
    with Packed(path) as packed:
        size = read_runs(
            packed, [Run(first=70, count=20), Run(first=5, count=40)], memoryview(into), tally, helper
        )
    data = path.read_bytes()[4096:]
    assert bytes(into) == data[70 * 12 : 90 * 12] + data[5 * 12 : 45 * 12]
    assert size == len(into) == tally.counters().requested_bytes
    assert helper.asked == (worth <= len(into))
    assert (tally.counters().reads, tally.counters().jumps) == (2, 2)
