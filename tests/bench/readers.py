"""Readers of packed files with a cold cache, against a plain read of the same file and against `strided`.

Sets of 2 GB, one after another; in each alternation every arm reads once, in a process of its own, after a
plain read of the file, which is then dropped from the page cache; and once more, from the page cache: what is
left of a ratio then is no gain of the disk's, but of cores. Ratios are of reads of one alternation: a disk
that others use too is not equally fast for long. Rates are of useful bytes. `strided` is the better of
its two ways in each alternation; it reads a part of the file, for all of it would take minutes.
"""

import os
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from figures import Figure
from reader_arms import ANNOUNCED, SEQUENTIAL, Arm, Reading
from reader_sets import ROOM, cold_and_warm, free_bytes, packed_set, refusal, warm_refusal

SET_BYTES = 2 * 10**9
SIZES = (
    4096,
    16384,
    100_000,
)  # bytes of a record; the last is no multiple of a page, as encoded images are none
RANKS, BATCH = 4, 256
STRIDED_BYTES = 256 * 2**20
LEAST_ROUNDS, ROUNDS, MOST_ROUNDS = 3, 5, 7
SLOW_S, SET_S = 150, 70  # seconds of a set after which the least are enough, and after which `ROUNDS` are
RUNS_SIZE, RUNS = 16384, tuple(2**power for power in (16, 18, 20, 22, 24))  # bytes, of a node in a step
RUNS_BYTES = 512 * 2**20
CONTIGUOUS, STRIDED = ("chunked_shuffle", "node_batch"), ("strided_threads", "strided_announced")
WARM = " warm"  # behind the name of an arm
OF_SEQUENTIAL, OF_STRIDED, PEAK_MB, LONG_RUN = 0.8, 1.0, 200.0, 4 * 10**6

Round = Mapping[str, Reading]


def measure() -> list[Figure]:
    """All figures; where the disk has no room for a set, the one that says so."""
    needed = ROOM * SET_BYTES
    if (free := free_bytes()) < needed:
        told = f"GB free in {tempfile.gettempdir()}; a set needs {needed / 1e9:.1f}; TMPDIR says where else"
        return [Figure("readers_free_gb", free / 1e9, needed / 1e9, told, at_least=True)]
    figures: list[Figure] = []
    loads: list[float] = []
    for size in SIZES:
        records = -(-SET_BYTES // (size * BATCH)) * BATCH
        with packed_set(size, records) as path:
            rounds = alternate(arms(path, size, records), loads)
            figures += of_size(rounds, f"{size // 1000}_kb")
            if size == RUNS_SIZE:
                figures += of_runs(alternate(run_arms(path), loads))
    told = f"load before each read, {min(loads):.1f} to {max(loads):.1f}; {os.cpu_count()} cores"
    return [*figures, Figure("readers_load", statistics.median(loads), None, told)]


def arms(path: Path, size: int, records: int) -> dict[str, Arm]:
    """The arms of one set: one node of `RANKS` ranks, or one rank of so many."""
    file, steps = str(path), records // BATCH
    part = min(steps, STRIDED_BYTES // (size * BATCH // RANKS))

    def arm(reader: str, steps: int) -> Arm:
        return Arm(path=file, reader=reader, batch=BATCH, steps=steps, ranks_of_nodes=(RANKS,))

    return {
        SEQUENTIAL: Arm(path=file, reader=SEQUENTIAL),
        **{reader: arm(reader, steps) for reader in CONTIGUOUS},
        **{reader: arm(reader, part) for reader in STRIDED},
    }


def run_arms(path: Path) -> dict[str, Arm]:
    """`node_batch` on two nodes, whose first reads runs of so many bytes, every other one of the file."""
    lengths = {
        str(run): Arm(
            path=str(path),
            reader="node_batch",
            batch=2 * run // RUNS_SIZE,
            steps=RUNS_BYTES // run,
            ranks_of_nodes=(1, 1),
        )
        for run in RUNS
    }
    plain = {reader: Arm(path=str(path), reader=reader) for reader in (SEQUENTIAL, ANNOUNCED)}
    return {**plain, **lengths}


def alternate(
    by_name: Mapping[str, Arm],
    loads: list[float],
    read: Callable[[Arm], tuple[Reading, Reading]] = cold_and_warm,
    clock: Callable[[], float] = time.monotonic,
) -> list[Round]:
    """Rounds in which every arm reads once, cold and then warm, each round beginning with another arm."""
    names, rounds, began = list(by_name), list[Round](), clock()
    while len(rounds) < _wanted(clock() - began):
        first = len(rounds) % len(names)
        done: dict[str, Reading] = {}
        for name in names[first:] + names[:first]:
            loads.append(os.getloadavg()[0])
            done[name], done[name + WARM] = read(by_name[name])
        rounds.append(done)
    return rounds


def _wanted(seconds: float) -> int:
    """Rounds, after so many seconds of a set."""
    return LEAST_ROUNDS if seconds > SLOW_S else ROUNDS if seconds > SET_S else MOST_ROUNDS


def of_size(rounds: Sequence[Round], size: str) -> list[Figure]:
    """The figures of one record size."""
    figures = [_rate(rounds, name, f"{name}_{size}") for name in _arms(rounds)]
    for name in CONTIGUOUS:
        shown = f"{name}_over_sequential_{size}"
        figures.append(_ratio(rounds, name, SEQUENTIAL, shown, OF_SEQUENTIAL))
    medians = {name: statistics.median(one[name].rate for one in rounds) for name in STRIDED}
    told = f"; of its two ways {max(medians, key=lambda name: medians[name])} is better by its median"
    strided = [{**one, **_better(one)} for one in rounds]
    for name in CONTIGUOUS:
        figures.append(_ratio(strided, name, "strided", f"{name}_over_strided_{size}", OF_STRIDED, told))
    figures.append(_ratio(strided, "strided", SEQUENTIAL, f"strided_over_sequential_{size}", None, told))
    warm = [_warm_rate(rounds, name, f"{name}_{size}") for name in _arms(rounds)]
    warm += [_warm_ratio(strided, name, "strided", f"{name}_over_strided_{size}") for name in CONTIGUOUS]
    return [*figures, *warm, _memory(rounds, size)]


def of_runs(rounds: Sequence[Round]) -> list[Figure]:
    """The curve over the length of runs; and what a plain read gains by announcing, as the readers do."""
    figures = [_ratio(rounds, ANNOUNCED, SEQUENTIAL, f"{ANNOUNCED}_over_{SEQUENTIAL}", None)]
    for name in (str(run) for run in RUNS):
        shown = f"{int(name) // 2**10}_kib_runs"
        shares = ", ".join(f"{one[name].cold_share:.2f}" for one in rounds)
        told = f"; node_batch on 2 nodes; bytes from the disk over useful ones: {shares}"
        limit = OF_SEQUENTIAL if int(name) >= LONG_RUN else None
        figures.append(_rate(rounds, name, shown))
        figures.append(_ratio(rounds, name, SEQUENTIAL, f"{shown}_over_sequential", limit, told))
        figures.append(_warm_rate(rounds, name, shown))
        figures.append(_warm_ratio(rounds, name, SEQUENTIAL, f"{shown}_over_sequential"))
    return figures


def _arms(rounds: Sequence[Round]) -> list[str]:
    return [name for name in rounds[0] if not name.endswith(WARM)]


def _better(one: Round) -> Round:
    """`strided` in its better way, cold and warm each."""
    return {f"strided{how}": max((one[name + how] for name in STRIDED), key=_rate_of) for how in ("", WARM)}


def _rate_of(reading: Reading) -> float:
    return reading.rate


def _rate(rounds: Sequence[Round], name: str, shown: str) -> Figure:
    readings = [one[name] for one in rounds]
    useful_mb = readings[0].useful_bytes / 1e6
    told = f"{useful_mb:.0f} MB useful a read, {readings[0].jumps} jumps; {_cpu(readings)}"
    return _figure(f"read_mb_s_{shown}", [one.rate / 1e6 for one in readings], refusal(readings), None, told)


def _warm_rate(rounds: Sequence[Round], name: str, shown: str) -> Figure:
    readings = [one[name + WARM] for one in rounds]
    rates = [one.rate / 1e6 for one in readings]
    told = f"from the page cache; {_cpu(readings)}"
    return _figure(f"read_mb_s_{shown}_warm", rates, warm_refusal(readings), None, told)


def _cpu(readings: Sequence[Reading]) -> str:
    return f"{statistics.median(one.cpu_s / one.useful_bytes * 1e9 for one in readings):.2f} CPU s a GB"


def _warm_ratio(rounds: Sequence[Round], over: str, under: str, shown: str) -> Figure:
    ratios = [one[over + WARM].rate / one[under + WARM].rate for one in rounds]
    why = warm_refusal([one[name + WARM] for one in rounds for name in (over, under)])
    return _figure(f"{shown}_warm", ratios, why, None, "the same reads from the page cache: no disk in it")


def _ratio(
    rounds: Sequence[Round], over: str, under: str, shown: str, limit: float | None, told: str = ""
) -> Figure:
    readings = [reading for one in rounds for reading in (one[over], one[under])]
    ratios = [one[over].rate / one[under].rate for one in rounds]
    return _figure(shown, ratios, refusal(readings), limit, f"of reads of one alternation{told}")


def _figure(name: str, values: Sequence[float], why: str | None, limit: float | None, told: str) -> Figure:
    """The median, or no number at all where reads are refused."""
    if why is not None:
        return Figure(name, float("nan"), limit, why, at_least=True)
    detail = f"median of {len(values)}, {min(values):.3g} to {max(values):.3g}; {told}"
    return Figure(name, statistics.median(values), limit, detail, at_least=True, samples=tuple(values))


def _memory(rounds: Sequence[Round], size: str) -> Figure:
    """Peak of the largest reader's process."""
    peaks = {name: max(one[name].peak_mb for one in rounds) for name in (*CONTIGUOUS, *STRIDED)}
    grown = {name: max(one[name].grown_mb for one in rounds) for name in peaks}
    told = ", ".join(f"{name} {peaks[name]:.0f} ({grown[name]:.0f} of it by reading)" for name in peaks)
    return Figure(f"reader_peak_mb_{size}", max(peaks.values()), PEAK_MB, f"of the whole process: {told}")
