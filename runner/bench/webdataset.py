"""`chunked_shuffle` of packed files beside WebDataset: the same records, shuffled, cold cache, in turn.

WebDataset is no dependency: `pip install webdataset`. One process each. Ours reads through its feeder and
compares checksums; WebDataset has records and labels as bytes, shards of at most 64 MiB in an order that is
drawn, and a buffer in which as many bytes are shuffled as in ours. Rates are of records, without tar's bytes.
"""

import importlib.util
import os
import statistics
import tempfile
from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import version

from . import webdataset_shards
from .figures import Figure
from .reader_arms import Arm, Reading
from .reader_sets import cold_read, free_bytes, packed_set, refusal
from .readers import SIZES
from .webdataset_shards import Shards, shards_of

SET_BYTES = 256 * 10**6
ROOM = 4  # times a set: the shards of small records are twice as large
BATCH, ROUNDS = 256, 5
OURS, THEIRS = "chunked_shuffle", "webdataset"

Round = Mapping[str, Reading]


def measure() -> list[Figure]:
    """All figures; where WebDataset is not installed, or the disk has no room, the one that says so."""
    if importlib.util.find_spec("webdataset") is None:
        told = "skipped: WebDataset is not installed, and is no dependency: pip install webdataset"
        return [Figure("webdataset", float("nan"), None, told)]
    if (free := free_bytes()) < ROOM * SET_BYTES:
        told = f"GB free in {tempfile.gettempdir()}; TMPDIR says where else"
        return [Figure("webdataset_free_gb", free / 1e9, ROOM * SET_BYTES / 1e9, told, at_least=True)]
    figures: list[Figure] = []
    loads: list[float] = []
    for size in SIZES:
        steps = -(-SET_BYTES // (size * BATCH))
        with packed_set(size, steps * BATCH) as path, shards_of(path) as shards:
            arm = Arm(path=str(path), reader=OURS, batch=BATCH, steps=steps)
            reads = {
                OURS: lambda arm=arm: cold_read(arm),
                THEIRS: lambda s=shards: webdataset_shards.cold_read(s),
            }
            figures += of_size(alternate(reads, loads), shards)
    told = (
        f"load before each read, {min(loads):.1f} to {max(loads):.1f}; {os.cpu_count()} cores; webdataset "
        f"{version('webdataset')}"
    )
    return [*figures, Figure("webdataset_load", statistics.median(loads), None, told)]


def alternate(reads: Mapping[str, Callable[[], Reading]], loads: list[float]) -> list[Round]:
    """Rounds in which both read once, each round beginning with the other one."""
    rounds: list[Round] = []
    for number in range(ROUNDS):
        done: dict[str, Reading] = {}
        for name in sorted(reads, reverse=bool(number % 2)):
            loads.append(os.getloadavg()[0])
            done[name] = reads[name]()
        rounds.append(done)
    return rounds


def of_size(rounds: Sequence[Round], shards: Shards) -> list[Figure]:
    """The figures of one record size."""
    kb = f"{shards.size // 1000}_kb"
    readings = [reading for one in rounds for reading in one.values()]
    why = refusal(readings)
    rates = {name: [one[name].rate / shards.size for one in rounds] for name in (OURS, THEIRS)}
    ratios = [ours / theirs for ours, theirs in zip(rates[OURS], rates[THEIRS], strict=True)]
    figures = [_median(f"{name}_records_s_{kb}", rates[name], why) for name in rates]
    figures.append(_median(f"{OURS}_over_{THEIRS}_{kb}", ratios, why))
    bytes_of_tar = sum(path.stat().st_size for path in shards.paths)
    told = "bytes of the tar files over bytes of the records"
    figures.append(
        Figure(f"tar_over_records_{kb}", bytes_of_tar / (shards.records * shards.size), None, told)
    )
    for name in rates:
        peak = max(one[name].peak_mb for one in rounds)
        figures.append(Figure(f"{name}_peak_mb_{kb}", peak, None, "of the whole process, at most"))
    return figures


def _median(name: str, values: Sequence[float], why: str | None) -> Figure:
    """No number where a read was not cold."""
    if why is not None:
        return Figure(name, float("nan"), None, why)
    told = f"median of {len(values)} alternations, {min(values):.3g} to {max(values):.3g}"
    return Figure(name, statistics.median(values), None, told, samples=tuple(values))
