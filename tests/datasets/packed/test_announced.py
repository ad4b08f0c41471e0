"""What is read in runs, or one thread reads one by one, the system is told of before."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from daso_bench.datasets.packed.counters import Tally
from daso_bench.datasets.packed.loads import Reader, Stretch
from daso_bench.datasets.packed.orders import Epoch
from daso_bench.datasets.packed.packed_file import Packed
from daso_bench.datasets.packed.readers import block, chunked_shuffle, node_batch
from daso_bench.datasets.packed.strided import strided
from daso_bench.datasets.sampler import Sampler

pytestmark = pytest.mark.skipif(not hasattr(os, "posix_fadvise"), reason="the system takes no advice")
SIZES = tuple(1 + (7 * place) % 23 for place in range(53))


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


@pytest.mark.parametrize("layout", ["block", "node_batch", "chunked_shuffle", "announced"])
@pytest.mark.parametrize("sizes", [(), SIZES], ids=["one size", "many sizes"])
def test_every_byte_is_announced_before_it_is_read(
    make_packed: Callable[..., Path], monkeypatch: pytest.MonkeyPatch, layout: str, sizes: tuple[int, ...]
) -> None:
    epoch = Epoch.of(Sampler(53, 9, 3, 0), (2, 1))
    stretches, tally = [Stretch(number=number, epoch=epoch) for number in (0, 1)], Tally()
    with Packed(make_packed(53, 12, sizes)) as packed:
        readers: dict[str, Callable[[], Reader]] = {
            "block": lambda: block(packed, stretches, 0, tally),
            "node_batch": lambda: node_batch(packed, stretches, 0, tally),
            "chunked_shuffle": lambda: chunked_shuffle(
                packed, stretches, 0, tally, seed=5, chunk_bytes=40, window_chunks=2
            ),
            "announced": lambda: strided(packed, stretches, 0, tally, threads=False),
        }
        calls, wanted = Calls(monkeypatch), set[int]()
        for load in readers[layout]():
            load.fill(memoryview(bytearray(9 * 23)))
            for record in load.records.tolist():
                first = 4096 + packed.start_of(record)
                wanted |= {*range(first, first + packed.size_of(record, 1))}
    assert calls.read == wanted
    assert calls.unannounced == set()
