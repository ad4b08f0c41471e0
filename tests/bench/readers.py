"""Readers of packed files against a plain read of the same file, with a cold cache.

Sets of 2 GB of random bytes, one for each record size. In each round every reader reads once, in a process of
its own that never loads torch (`python readers.py JSON`), after a plain read of the file, which is then
dropped from the page cache. A reader fills the slots of a `Feeder`, and members take records from there, as
in a run. Ratios are of reads of one round: a disk that others use too is not equally fast for long. Rates are
of useful bytes. `strided` reads a part of the file, for all of it would take minutes.
"""

import json
import math
import multiprocessing
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import cast

import numpy as np
from figures import Figure

from daso_bench.datasets.packed.feeder import Feeder, Geometry, Member
from daso_bench.datasets.packed.packed_file import Description, Packed, writing
from daso_bench.datasets.packed.readers import CounterTally, Reader, chunked_shuffle, node_batch, strided
from daso_bench.datasets.packed.record_order import Epoch, EpochSlice
from daso_bench.runner.machine.page_cache import drop

SET_BYTES, STRIDED_BYTES = 2 * 10**9, 256 * 2**20
SIZES = (4096, 16384, 100_000)  # bytes of a record; the last is no multiple of a page, as of encoded images
RANKS, BATCH, ROUNDS = 4, 256, 5
SLOTS = 3  # two steps ahead of the one in use, as `reader.prefetch_batches` has it
PLAIN_READ_BYTES, BLOCK_BYTES = 2**20, 16 * 2**20
COLD = 0.98  # of the useful bytes must come from the disk
ROOM = 1.2  # of a set must be free: its index, and other people's files
OF_PLAIN, PEAK_MB = 0.8, 200.0
PLAIN, STRIDED = "plain", "strided"
READERS: dict[str, Callable[[Packed, list[EpochSlice], int, CounterTally], Reader]] = {
    "chunked_shuffle": partial(chunked_shuffle, seed=0),
    "node_batch": node_batch,
    STRIDED: strided,
}


@dataclass(frozen=True, kw_only=True)
class Arm:
    """`steps` steps of `BATCH` records, read for a node of `RANKS` ranks, by `strided` for one of them.

    reader: of `READERS`, or `PLAIN` for a read of the whole file by nothing but the system's calls.
    """

    path: str
    reader: str
    steps: int = 1


@dataclass(frozen=True, kw_only=True)
class Reading:
    """What a read cost. disk_bytes: of the process, from the disk; None where the system does not tell.

    peak_mb: most resident memory of the whole process, in 10**6 bytes.
    """

    seconds: float
    useful_bytes: int
    disk_bytes: int | None
    peak_mb: float

    @property
    def rate(self) -> float:
        """Useful bytes per second."""
        return self.useful_bytes / self.seconds

    @property
    def cold_share(self) -> float:
        """Bytes from the disk over useful bytes; NaN where they are not known."""
        return math.nan if self.disk_bytes is None else self.disk_bytes / self.useful_bytes


Round = Mapping[str, Reading]


def readers() -> list[Figure]:
    """All figures; where the disk has no room for a set, the one that says so."""
    free, needed = shutil.disk_usage(tempfile.gettempdir()).free, ROOM * SET_BYTES
    if free < needed:
        detail = f"GB free in {tempfile.gettempdir()}; a set needs {needed / 1e9:.1f}; TMPDIR says where else"
        return [Figure("readers_free_gb", free / 1e9, needed / 1e9, detail, at_least=True)]
    figures: list[Figure] = []
    for size in SIZES:
        records = -(-SET_BYTES // (size * BATCH)) * BATCH
        with packed_set(size, records) as path:
            figures += of_size(in_turn(arms(path, size, records)), f"{size // 1000}_kb")
    return figures


def arms(path: Path, size: int, records: int) -> dict[str, Arm]:
    """The arms of one set."""
    steps = dict.fromkeys(READERS, records // BATCH)
    steps[STRIDED] = min(records // BATCH, STRIDED_BYTES // (size * BATCH // RANKS))
    made = {name: Arm(path=str(path), reader=name, steps=count) for name, count in steps.items()}
    return {PLAIN: Arm(path=str(path), reader=PLAIN), **made}


def in_turn(by_name: Mapping[str, Arm], read: Callable[[Arm], Reading] | None = None) -> list[Round]:
    """Rounds in which every arm reads once, each round beginning with another arm."""
    names, rounds = list(by_name), list[Round]()
    for number in range(ROUNDS):
        first = number % len(names)
        order = names[first:] + names[:first]
        rounds.append({name: cold_read(by_name[name], read or read_alone) for name in order})
    return rounds


def cold_read(arm: Arm, read: Callable[[Arm], Reading]) -> Reading:
    """Read once after a plain read of the whole file, whose pages are dropped.

    Without that read before, a read is several times as fast after some arms as after others: memory, and
    caches below this machine's own, are as the arm before has left them.
    """
    read(Arm(path=arm.path, reader=PLAIN))
    drop(Path(arm.path))
    return read(arm)


@contextmanager
def packed_set(size: int, records: int) -> Iterator[Path]:
    """A set of random bytes; gone afterwards, however that comes. size: bytes of a record."""
    with tempfile.TemporaryDirectory(prefix="daso-bench-readers-") as folder:
        path = Path(folder) / f"{size}.packed"
        made = "random bytes, PCG64 with seed 0"
        description = Description(name="random", classes=10, shape=(size,), encoding="uint8", made=made)
        generator = np.random.Generator(np.random.PCG64(0))
        with writing(path, description, record_bytes=size) as add:
            for first in range(0, records, BLOCK_BYTES // size):
                count = min(BLOCK_BYTES // size, records - first)
                block = memoryview(generator.bytes(count * size))
                for place in range(count):
                    add(block[place * size : (place + 1) * size], (first + place) % 10)
        yield path


# ------------------------------------------------------------------ figures


def of_size(rounds: Sequence[Round], size: str) -> list[Figure]:
    """The figures of one record size: rates, ratios to the plain read's, memory of the largest reader."""
    figures: list[Figure] = []
    for name in rounds[0]:
        rates = [one[name].rate / 1e6 for one in rounds]
        figures.append(_figure(f"read_mb_s_{name}_{size}", rates, _refusal(rounds, name), None))
    for name in READERS:
        ratios = [one[name].rate / one[PLAIN].rate for one in rounds]
        limit = None if name == STRIDED else OF_PLAIN
        figures.append(_figure(f"{name}_over_plain_{size}", ratios, _refusal(rounds, name, PLAIN), limit))
    peaks = {name: max(one[name].peak_mb for one in rounds) for name in READERS}
    detail = "of the whole process: " + ", ".join(f"{name} {peak:.0f}" for name, peak in peaks.items())
    return [*figures, Figure(f"reader_peak_mb_{size}", max(peaks.values()), PEAK_MB, detail)]


def _refusal(rounds: Sequence[Round], *names: str) -> str | None:
    """Why these reads say nothing of a disk; None if each of them was cold."""
    shares = [one[name].cold_share for one in rounds for name in names]
    warm = [share for share in shares if not share >= COLD]
    if not warm:
        return None
    listed = ", ".join("not known" if math.isnan(share) else f"{share:.1%}" for share in warm)
    return (
        f"refused: {len(warm)} of {len(shares)} reads not cold: of their bytes came from the disk: {listed}"
    )


def _figure(name: str, values: Sequence[float], why: str | None, limit: float | None) -> Figure:
    """The median, or no number at all where reads are refused."""
    if why is not None:
        return Figure(name, math.nan, limit, why, at_least=True)
    detail = f"median of {len(values)}, {min(values):.3g} to {max(values):.3g}"
    return Figure(name, statistics.median(values), limit, detail, at_least=True, samples=tuple(values))


# ------------------------------------------------------------------ one read


def read_alone(arm: Arm) -> Reading:
    """Read in a new process. Raises RuntimeError with what it said at its end."""
    command = [sys.executable, __file__, json.dumps(asdict(arm))]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    if done.returncode:
        raise RuntimeError(f"{arm.reader} of {arm.path} failed: {done.stderr[-2000:]}")
    return Reading(**json.loads(done.stdout))


def read(arm: Arm) -> Reading:
    """Read in this process."""
    path = Path(arm.path)
    if arm.reader == PLAIN:
        return _measured(lambda: _plain(path))
    with Packed(path, random_access=arm.reader == STRIDED) as packed:
        return _measured(lambda: _fed(packed, arm))


def _measured(reading: Callable[[], int]) -> Reading:
    """What `reading`, which returns the useful bytes, costs."""
    before, started = _of_process("io", r"^read_bytes: (\d+)$"), time.perf_counter()
    useful_bytes = reading()
    seconds, after = time.perf_counter() - started, _of_process("io", r"^read_bytes: (\d+)$")
    peak_kib = _of_process("status", r"^VmHWM:\s+(\d+) kB$")
    return Reading(
        seconds=seconds,
        useful_bytes=useful_bytes,
        disk_bytes=None if before is None or after is None else after - before,
        # Not `getrusage`: its peak begins with that of the process that started this one.
        peak_mb=math.nan if peak_kib is None else peak_kib * 1024 / 1e6,
    )


def _fed(packed: Packed, arm: Arm) -> int:
    """Give a reader's records to members in this process; returns the useful bytes."""
    members, share = 1 if arm.reader == STRIDED else RANKS, BATCH // RANKS
    sizes, tally = (share,) * RANKS, CounterTally()
    epoch = Epoch(batch=BATCH, steps=arm.steps, full=sizes, last=sizes, ranks_of_nodes=(RANKS,))
    # On Windows the ends would be others.
    lines = [cast(tuple[Connection, Connection], multiprocessing.Pipe()) for _ in range(members)]
    geometry = Geometry.of(packed, share * members, SLOTS)
    source = READERS[arm.reader](packed, [EpochSlice(number=0, epoch=epoch)], 0, tally)
    with ExitStack() as stack:
        feeder = stack.enter_context(Feeder(packed, source, [ours for ours, _ in lines], geometry, tally))
        for parts in zip(*[Member(theirs) for _, theirs in lines], strict=True):
            assert all(len(part) == share for part in parts), "every step is whole here"
        feeder.join()
    return feeder.counters.useful_bytes


def _plain(path: Path) -> int:
    """Read a whole file from its beginning to its end; returns how many bytes."""
    into, done = memoryview(bytearray(PLAIN_READ_BYTES)), 0
    with open(path, "rb", buffering=0) as file:
        while got := file.readinto(into):
            done += got
    return done


def _of_process(file: str, pattern: str) -> int | None:
    """A number that the system tells of this process; None where it does not (elsewhere than on Linux)."""
    path = Path("/proc/self") / file
    match = re.search(pattern, path.read_text(), re.MULTILINE) if path.exists() else None
    return int(match[1]) if match else None


if __name__ == "__main__":
    print(json.dumps(asdict(read(Arm(**json.loads(sys.argv[1]))))))
