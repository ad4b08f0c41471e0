"""What the bench of readers does with reads: in turn, paired, cold or refused; and that it leaves nothing."""

import dataclasses
import math
import os
import tempfile
from pathlib import Path

import pytest

import reader_sets, readers
from figures import Figure
from reader_arms import ANNOUNCED, READERS, SEQUENTIAL, Arm, Reading, read, read_alone
from reader_sets import cold_and_warm, cold_read, packed_set, refusal
from readers import WARM

MB = 10**6


def reading(mb_s: float, cold: float | None = 1.0, peak_mb: float = 50) -> Reading:
    """Of 100 MB."""
    return Reading(
        seconds=100 / mb_s,
        useful_bytes=100 * MB,
        disk_bytes=None if cold is None else round(cold * 100 * MB),
        jumps=1,
        peak_mb=peak_mb,
        grown_mb=10,
        cpu_s=0.02,
    )


def rounds(**rates: list[float]) -> list[readers.Round]:
    """By arm, the rates of all rounds; arms that are not named read 100 MB/s."""
    names = [*readers.arms(Path("x"), 4096, 2560)]
    count = len(next(iter(rates.values())))
    return [
        {
            **{name: reading(rates.get(name, [100] * count)[place]) for name in names},
            **{name + WARM: reading(rates.get(f"{name}_warm", [800] * count)[place], 0.0) for name in names},
        }
        for place in range(count)
    ]


def by_name(figures: list[Figure]) -> dict[str, Figure]:
    return {figure.name: figure for figure in figures}


def test_ratios_are_of_the_same_alternation_and_strided_is_its_better_way() -> None:
    found = by_name(
        readers.of_size(
            rounds(
                sequential=[100, 1000, 500],
                chunked_shuffle=[90, 700, 450],
                strided_threads=[30, 10, 20],
                strided_announced=[20, 40, 25],
            ),
            "4_kb",
        )
    )
    assert found["chunked_shuffle_over_sequential_4_kb"].samples == pytest.approx((0.9, 0.7, 0.9))
    assert found["chunked_shuffle_over_sequential_4_kb"].value == pytest.approx(0.9)
    assert found["chunked_shuffle_over_strided_4_kb"].samples == pytest.approx((3, 17.5, 18))
    assert "strided_announced is better" in found["chunked_shuffle_over_strided_4_kb"].detail
    assert found["read_mb_s_sequential_4_kb"].value == pytest.approx(500)


def test_limits_are_the_ones_promised() -> None:
    slow = by_name(readers.of_size(rounds(node_batch=[79.0]), "4_kb"))
    assert not slow["node_batch_over_sequential_4_kb"].ok
    assert not slow["node_batch_over_strided_4_kb"].ok
    assert slow["chunked_shuffle_over_strided_4_kb"].limit == 1
    assert slow["strided_over_sequential_4_kb"].limit is None
    by_arm = {SEQUENTIAL: 100, ANNOUNCED: 200, **{str(run): 75 for run in readers.RUNS}}
    warm = {f"{name}{WARM}": reading(2 * rate, 0) for name, rate in by_arm.items()}
    runs = [{**{name: reading(rate) for name, rate in by_arm.items()}, **warm}]
    short = {figure.name for figure in readers.of_runs(runs) if not figure.ok}
    assert short == {"4096_kib_runs_over_sequential", "16384_kib_runs_over_sequential"}


def test_memory_is_the_largest_readers_and_not_the_plain_reads() -> None:
    one = dict(rounds(node_batch=[100.0])[0])
    one["node_batch"] = dataclasses.replace(one["node_batch"], peak_mb=201)
    one[SEQUENTIAL] = dataclasses.replace(one[SEQUENTIAL], peak_mb=900)
    figure = by_name(readers.of_size([one], "4_kb"))["reader_peak_mb_4_kb"]
    assert (figure.value, figure.ok) == (201, False)


@pytest.mark.parametrize("cold", [0.5, None])
def test_a_read_that_was_not_cold_gives_no_number(cold: float | None) -> None:
    several = [dict(one) for one in rounds(node_batch=[100, 100, 100])]
    several[1]["node_batch"] = reading(5000, cold)
    found = by_name(readers.of_size(several, "4_kb"))
    refused = found["node_batch_over_sequential_4_kb"]
    assert math.isnan(refused.value)
    assert not refused.ok
    assert refused.detail.startswith("refused: 1 of 6 reads not cold: ")
    assert ("not known" if cold is None else "50.0%") in refused.detail
    assert found["chunked_shuffle_over_sequential_4_kb"].ok
    assert refusal([reading(1, 0.98)]) is None
    assert refusal([reading(1, 0.979)]) is not None


def test_before_every_read_the_file_is_read_plainly_and_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[str] = []
    monkeypatch.setattr(reader_sets, "drop", lambda path: seen.append(f"drop {path}"))

    def note(arm: Arm) -> Reading:
        seen.append(arm.reader)
        return reading(7 if arm.reader == "node_batch" else 100)

    assert cold_read(Arm(path="x", reader="node_batch", steps=9), note).rate == pytest.approx(7 * MB)
    assert seen == [SEQUENTIAL, "drop x", "node_batch"]


def test_the_same_read_comes_once_more_from_the_page_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[str] = []
    monkeypatch.setattr(reader_sets, "drop", lambda path: seen.append("drop"))

    def note(arm: Arm) -> Reading:
        seen.append(arm.reader)
        return reading(len(seen))

    cold, warm = cold_and_warm(Arm(path="x", reader="block"), note)
    assert seen == [SEQUENTIAL, "drop", "block", "block"]
    assert (cold.rate, warm.rate) == pytest.approx((3 * MB, 4 * MB))


def test_warm_ratios_are_of_warm_reads_alone_and_refused_where_one_had_a_disk() -> None:
    several = rounds(
        node_batch=[300, 300, 300],
        node_batch_warm=[1500, 1600, 1800],
        strided_threads_warm=[500, 100, 400],
        strided_announced_warm=[400, 800, 600],
    )
    found = by_name(readers.of_size(several, "4_kb"))
    assert found["node_batch_over_strided_4_kb_warm"].samples == pytest.approx((3, 2, 3))
    assert found["read_mb_s_node_batch_4_kb_warm"].value == pytest.approx(1600)
    assert "0.20 CPU s a GB" in found["read_mb_s_node_batch_4_kb_warm"].detail
    several[2] = {**several[2], f"node_batch{WARM}": reading(1800, 0.021)}
    refused = by_name(readers.of_size(several, "4_kb"))["node_batch_over_strided_4_kb_warm"]
    assert math.isnan(refused.value)
    assert refused.detail == "refused: 1 of 6 reads not warm: of their bytes came from the disk: 2.1%"
    runs = by_name(
        readers.of_runs(
            [
                {
                    name + how: reading(40 if how and name == "65536" else 100, 0.0 if how else 1.0)
                    for name in (SEQUENTIAL, ANNOUNCED, *map(str, readers.RUNS))
                    for how in ("", WARM)
                }
            ]
        )
    )
    assert runs["64_kib_runs_over_sequential_warm"].value == pytest.approx(0.4)
    assert runs["64_kib_runs_over_sequential"].value == pytest.approx(1)


def test_every_arm_reads_once_a_round_and_rounds_begin_with_another() -> None:
    seen: list[str] = []

    def note(arm: Arm) -> tuple[Reading, Reading]:
        seen.append(arm.reader)
        return reading(100), reading(300, 0)

    arms = {name: Arm(path="x", reader=name) for name in "abc"}
    assert len(readers.alternate(arms, [], note, clock=lambda: 100 if seen else 0)) == readers.ROUNDS
    assert "".join(seen) == "abcbcacababcbca"
    (first, *others) = readers.alternate(arms, [], note, clock=lambda: 200 if len(seen) > 20 else 0)
    assert 1 + len(others) == readers.LEAST_ROUNDS
    assert (first["b"].rate, first[f"b{WARM}"].rate) == pytest.approx((100 * MB, 300 * MB))
    seen.clear()
    assert len(readers.alternate(arms, [], note, clock=lambda: 0)) == readers.MOST_ROUNDS


def test_a_full_disk_is_refused_with_the_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(readers, "free_bytes", lambda: 10**9)
    (figure,) = readers.measure()
    assert figure.line() == "bench readers_free_gb 1 >=2.4 short"
    assert "TMPDIR" in figure.detail


@pytest.fixture
def scratch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where temporary files go now."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def test_the_set_goes_when_it_is_interrupted_while_made_or_read(
    scratch: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes: list[int] = []

    def interrupted_later() -> None:
        with packed_set(4096, 8) as path:
            sizes.append(path.stat().st_size)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted_later()
    assert sizes[0] > 8 * 4096
    assert os.listdir(scratch) == []

    def interrupted(self: object, record: bytes, label: int) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(reader_sets.Writer, "add", interrupted)
    with pytest.raises(KeyboardInterrupt), packed_set(4096, 8):
        pass
    assert os.listdir(scratch) == []


def test_every_arm_gives_all_its_bytes_in_a_process_without_torch(
    scratch: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(readers, "STRIDED_BYTES", 16 * 4096 * readers.BATCH // readers.RANKS)
    records = 20 * readers.BATCH
    with packed_set(4096, records) as path:
        arms = readers.arms(path, 4096, records)
        useful = {name: read(arm).useful_bytes for name, arm in arms.items()}
        alone = read_alone(arms["node_batch"])
    whole, part = records * 4096, 16 * 4096 * readers.BATCH // readers.RANKS
    assert useful["chunked_shuffle"] == useful["node_batch"] == whole
    assert useful["strided_threads"] == useful["strided_announced"] == part
    assert useful[SEQUENTIAL] >= whole
    assert set(READERS) < set(arms)
    assert alone.useful_bytes == whole
    assert 0 < alone.cpu_s < 10
    assert alone.peak_mb < 200 or math.isnan(alone.peak_mb)  # with torch it would be 400
