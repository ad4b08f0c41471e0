"""The records of a packed file as WebDataset's tar shards, and one read of them: `python -m … JSON`.

A read is in a process of its own without torch, so that its memory is that of the reader.
"""

import importlib
import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ...datasets.packed.packed_file import Packed
from ..readers.page_cache import drop, read_in
from .reader_arms import Reading, measured

SHARD_BYTES = 64 * 2**20  # at most
SHUFFLED_BYTES = 16 * 2**20  # of records in memory together, as many as of `chunked_shuffle`
SEED = 0


@dataclass(frozen=True, kw_only=True)
class Shards:
    """Where they lie, and the records in all of them together. size: bytes of a record."""

    folder: str
    records: int
    size: int

    @property
    def paths(self) -> list[Path]:
        """The tar files, in their order."""
        return sorted(Path(self.folder).glob("*.tar"))


@contextmanager
def shards_of(path: Path) -> Iterator[Shards]:
    """The records of a packed file as shards beside it, each record with its label; gone afterwards."""
    folder = path.with_suffix(".shards")
    folder.mkdir()
    try:
        with Packed(path) as packed:
            yield Shards(folder=str(folder), records=len(packed), size=_write(packed, folder))
    finally:
        shutil.rmtree(folder)


def _write(packed: Packed, folder: Path) -> int:
    """Returns the bytes of a record."""
    pattern, count, size = str(folder / "%06d.tar"), len(packed), packed.size_of(0, 1)
    content = bytearray(size)
    with library().ShardWriter(pattern, maxcount=count, maxsize=SHARD_BYTES, verbose=0) as writer:
        for record in range(count):
            packed.read(record, 1, memoryview(content))
            label = str(packed.labels[record]).encode()
            writer.write({"__key__": f"{record:09d}", "bin": bytes(content), "cls": label})
    return size


def cold_read(shards: Shards) -> Reading:
    """Read once in a new process, after a plain read of all shards, whose pages are dropped.

    Raises RuntimeError with what the process said at its end.
    """
    for path in shards.paths:
        read_in(path)
    for path in shards.paths:
        drop(path)
    command = [sys.executable, "-m", __name__, json.dumps(asdict(shards))]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    if done.returncode:
        raise RuntimeError(f"webdataset of {shards.folder} failed: {done.stderr[-2000:]}")
    return Reading(**json.loads(done.stdout))


def read(shards: Shards) -> Reading:
    """Read in this process, shards and records shuffled. Raises RuntimeError: not all records came."""
    made = library()

    def all_of_them() -> tuple[int, int]:
        paths, useful_bytes, labels = [str(path) for path in shards.paths], 0, 0
        source = made.WebDataset(paths, shardshuffle=len(paths), seed=SEED)
        for sample in source.shuffle(max(1, SHUFFLED_BYTES // shards.size), seed=SEED):
            useful_bytes += len(sample["bin"])
            labels += int(sample["cls"])
        if useful_bytes != shards.records * shards.size:
            raise RuntimeError(f"{useful_bytes} bytes of records came: {shards}")
        return useful_bytes, len(paths)

    return measured(all_of_them)


def library() -> Any:
    """WebDataset; ModuleNotFoundError where it is not installed."""
    return importlib.import_module("webdataset")


if __name__ == "__main__":
    # WebDataset takes torch's classes as its own where there is torch, and reads as well without.
    sys.modules["torch"] = None  # pyright: ignore[reportArgumentType] (as Python documents it)
    print(json.dumps(asdict(read(Shards(**json.loads(sys.argv[1]))))))
