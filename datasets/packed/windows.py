"""Windows of chunks in memory: read ahead by a thread, given out record after record in their drawn order."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import numpy as np
from numpy.typing import NDArray

from .counters import Tally
from .orders import Records, Window, records_of
from .packed_file import Packed
from .reading import announced, read_runs


class Windows:
    """Copies the records of `windows` out, one after another, but for the first `passed` ones.

    Two windows are in memory: one is read while the other is given out, whatever epochs they belong to.
    most_bytes: of a window. pool: two threads that read.
    """

    def __init__(
        self,
        packed: Packed,
        windows: Iterator[Window],
        passed: int,
        most_bytes: int,
        tally: Tally,
        pool: ThreadPoolExecutor,
    ) -> None:
        self._packed, self._tally, self._pool = packed, tally, pool
        self._memory = np.empty((2, most_bytes), dtype=np.uint8)  # pages that are never used cost nothing
        self._coming = _one_ahead(self._read(windows), pool)
        self._order: Records = np.empty(0, dtype=np.int64)
        self._starts: Records = self._order
        self._content: NDArray[np.uint8] = self._memory[0]
        self._passed = passed
        self._cursor = 0

    def copy(self, count: int, into: memoryview) -> None:
        """The next `count` records, one after another, to the beginning of `into`."""
        done = 0
        while count:
            if self._cursor == len(self._order):
                self._advance()
            places = self._order[self._cursor : self._cursor + count]
            size = self._gather(places, into[done:])
            self._tally.add(useful_bytes=size)
            self._cursor += len(places)
            count -= len(places)
            done += size

    def _advance(self) -> None:
        window, self._content = next(self._coming)
        self._order = window.order
        self._starts = np.array([0, *self._packed.ends_in(records_of(window.runs))])
        self._cursor, self._passed = self._passed, 0

    def _gather(self, places: Records, into: memoryview) -> int:
        """The records at these places of the window to the beginning of `into`; returns how many bytes."""
        size = self._packed.record_bytes
        if size is not None:
            rows = self._content[: self._starts[-1]].reshape(-1, size)
            target = np.frombuffer(into, dtype=np.uint8, count=len(places) * size).reshape(-1, size)
            np.take(rows, places, axis=0, out=target, mode="clip")  # the mode that copies straight to `out`
            return target.size
        done, content = 0, self._content.data
        for first, end in zip(self._starts[places].tolist(), self._starts[places + 1].tolist(), strict=True):
            into[done : done + end - first] = content[first:end]
            done += end - first
        return done

    def _read(self, windows: Iterator[Window]) -> Iterator[tuple[Window, NDArray[np.uint8]]]:
        for number, window in enumerate(
            announced(self._packed, windows, lambda window: window.runs, self._tally)
        ):
            content = self._memory[number % 2]
            read_runs(self._packed, window.runs, content.data, self._tally, self._pool)
            yield window, content


def _one_ahead(
    items: Iterator[tuple[Window, NDArray[np.uint8]]], pool: ThreadPoolExecutor
) -> Iterator[tuple[Window, NDArray[np.uint8]]]:
    """The items, the next one being made by the pool while one is used.

    Two windows share two places in memory: when the user comes for window w + 1 it is done with window w, and
    only then does w + 2, which lies in the same place, begin to be read.
    """
    coming = pool.submit(next, items, None)
    while (item := coming.result()) is not None:
        coming = pool.submit(next, items, None)
        yield item
