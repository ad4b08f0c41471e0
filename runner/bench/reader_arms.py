"""One read of a packed file in a process of its own, as a run of training makes it: `python -m … JSON`.

A reader fills the slots of a `Feeder`, and members take them from there, all in this process: the hand-over
is in the figure, and what ranks do with the records is not. The plain reads have neither. Torch is never
loaded, so that the memory of the process is that of the reader.
"""

import json
import math
import multiprocessing
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import cast

from ...datasets.packed.contiguous_readers import chunked_shuffle, node_batch
from ...datasets.packed.feeder import Feeder, Geometry, Member
from ...datasets.packed.packed_file import Packed
from ...datasets.packed.reading import Reader, Tally
from ...datasets.packed.record_order import Epoch, Stretch
from ...datasets.packed.strided_reader import strided

SLOTS = 3  # two steps ahead of the one in use, as `reader.prefetch_batches` has it
PLAIN_READ_BYTES, AHEAD_BYTES = 2**20, 32 * 2**20
SEQUENTIAL, ANNOUNCED = "sequential", "sequential_announced"

Read = Callable[[Packed, list[Stretch], int, Tally], Reader]
READERS: dict[str, Read] = {
    "chunked_shuffle": partial(chunked_shuffle, seed=0),
    "node_batch": node_batch,
    "strided_threads": partial(strided, threads=True),
    "strided_announced": partial(strided, threads=False),
}


@dataclass(frozen=True, kw_only=True)
class Arm:
    """What is read: `steps` steps of `batch` records by the first node, or by its first rank.

    reader: of `READERS`, or for a read of the whole file by nothing but the system's calls `SEQUENTIAL`, or
    `ANNOUNCED` where the system is told of `AHEAD_BYTES` before they are read.
    """

    path: str
    reader: str
    batch: int = 1
    steps: int = 1
    ranks_of_nodes: tuple[int, ...] = (1,)


@dataclass(frozen=True, kw_only=True)
class Reading:
    """What a read cost. disk_bytes: of the process, from the disk; None where the system does not tell.

    peak_mb: most resident memory of the whole process, in 10**6 bytes; grown_mb: of that, by reading.
    cpu_s: of the process, in all its threads.
    """

    seconds: float
    useful_bytes: int
    disk_bytes: int | None
    jumps: int
    peak_mb: float
    grown_mb: float
    cpu_s: float = math.nan

    @property
    def rate(self) -> float:
        """Useful bytes per second."""
        return self.useful_bytes / self.seconds

    @property
    def cold_share(self) -> float:
        """Bytes from the disk over useful bytes; NaN where they are not known."""
        return float("nan") if self.disk_bytes is None else self.disk_bytes / self.useful_bytes


def read_alone(arm: Arm) -> Reading:
    """Do it in a new process. Raises RuntimeError with what it said at its end."""
    command = [sys.executable, "-m", __name__, json.dumps(asdict(arm))]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    if done.returncode:
        raise RuntimeError(f"{arm.reader} of {arm.path} failed: {done.stderr[-2000:]}")
    return Reading(**json.loads(done.stdout))


def read(arm: Arm) -> Reading:
    """Do it in this process."""
    if arm.reader in (SEQUENTIAL, ANNOUNCED):
        return measured(lambda: (_plain(Path(arm.path), announced=arm.reader == ANNOUNCED), 1))
    share = arm.batch // sum(arm.ranks_of_nodes)
    sizes = (share,) * sum(arm.ranks_of_nodes)
    epoch = Epoch(batch=arm.batch, steps=arm.steps, full=sizes, last=sizes, ranks_of_nodes=arm.ranks_of_nodes)
    by_rank = arm.reader.startswith("strided")
    members = 1 if by_rank else arm.ranks_of_nodes[0]
    with Packed(Path(arm.path), random_access=by_rank) as packed:
        return measured(lambda: _fed(packed, READERS[arm.reader], epoch, members))


def measured(reading: Callable[[], tuple[int, int]]) -> Reading:
    """What `reading`, which returns useful bytes and jumps, costs."""
    before_mb, from_disk = _peak_mb(), _disk_bytes()
    cpu_began, began = time.process_time(), time.perf_counter()
    useful_bytes, jumps = reading()
    seconds, cpu_s, until = time.perf_counter() - began, time.process_time() - cpu_began, _disk_bytes()
    return Reading(
        seconds=seconds,
        useful_bytes=useful_bytes,
        disk_bytes=None if from_disk is None or until is None else until - from_disk,
        jumps=jumps,
        peak_mb=_peak_mb(),
        grown_mb=_peak_mb() - before_mb,
        cpu_s=cpu_s,
    )


def _fed(packed: Packed, reader: Read, epoch: Epoch, members: int) -> tuple[int, int]:
    """All steps through a feeder to the members of the first node, or to its first rank."""
    tally = Tally()
    # On Windows the ends would be others.
    lines = [cast(tuple[Connection, Connection], multiprocessing.Pipe()) for _ in range(members)]
    geometry = Geometry.of(packed, epoch.full[0] * members, SLOTS)
    source = reader(packed, [Stretch(number=0, epoch=epoch)], 0, tally)
    with ExitStack() as stack:
        feeder = stack.enter_context(Feeder(packed, source, [ours for ours, _ in lines], geometry, tally))
        ends = [Member(theirs) for _, theirs in lines]
        for parts in zip(*ends, strict=True):
            assert all(len(part) == epoch.full[0] for part in parts), "every step is whole here"
        feeder.join()
    return feeder.counters.useful_bytes, feeder.counters.jumps


def _plain(path: Path, *, announced: bool) -> int:
    """Read a whole file from its beginning to its end; returns how many bytes."""
    into, done = memoryview(bytearray(PLAIN_READ_BYTES)), 0
    descriptor = os.open(path, os.O_RDONLY)
    try:
        if announced:
            os.posix_fadvise(descriptor, 0, AHEAD_BYTES, os.POSIX_FADV_WILLNEED)
        while got := os.preadv(descriptor, (into,), done):
            if announced:
                os.posix_fadvise(descriptor, done + AHEAD_BYTES, got, os.POSIX_FADV_WILLNEED)
            done += got
    finally:
        os.close(descriptor)
    return done


def _disk_bytes() -> int | None:
    return _told("io", r"^read_bytes: (\d+)$")


def _peak_mb() -> float:
    # Not `getrusage`: its peak begins with that of the process that started this one.
    peak_kib = _told("status", r"^VmHWM:\s+(\d+) kB$")
    return float("nan") if peak_kib is None else peak_kib * 1024 / 1e6


def _told(file: str, pattern: str) -> int | None:
    """A number that the system tells of this process; None where it does not (elsewhere than on Linux)."""
    told = Path("/proc/self") / file
    found = re.search(pattern, told.read_text(), re.MULTILINE) if told.exists() else None
    return int(found[1]) if found else None


if __name__ == "__main__":
    values = json.loads(sys.argv[1])
    print(json.dumps(asdict(read(Arm(**{**values, "ranks_of_nodes": tuple(values["ranks_of_nodes"])})))))
