"""What benches compute from times, against numbers by hand; reads in turn, paired, cold or refused."""

import dataclasses
import math
import os
import tempfile
from pathlib import Path

import links
import pytest
import readers
from figures import Figure, upper_limit
from links import MIB, Message
from readers import PLAIN, READERS, Arm, Reading, packed_set

MB = 10**6


def reading(mb_s: float, cold: float | None = 1.0, peak_mb: float = 50) -> Reading:
    """Of 100 MB."""
    disk_bytes = None if cold is None else round(cold * 100 * MB)
    return Reading(seconds=100 / mb_s, useful_bytes=100 * MB, disk_bytes=disk_bytes, peak_mb=peak_mb)


def rounds(**rates: list[float]) -> list[readers.Round]:
    """By arm, the rates of all rounds; arms that are not named read 100 MB/s."""
    count = len(next(iter(rates.values())))
    names = (PLAIN, *READERS)
    return [
        {name: reading(rates.get(name, [100] * count)[place]) for name in names} for place in range(count)
    ]


def by_name(made: list[readers.Round]) -> dict[str, Figure]:
    return {figure.name: figure for figure in readers.of_size(made, "4_kb")}


def test_ratios_are_of_the_same_round() -> None:
    figures = by_name(rounds(plain=[100, 1000, 500], chunked_shuffle=[90, 700, 450]))
    ratio = figures["chunked_shuffle_over_plain_4_kb"]
    assert ratio.samples == pytest.approx((0.9, 0.7, 0.9))
    assert ratio.value == pytest.approx(0.9)
    assert figures["read_mb_s_plain_4_kb"].value == pytest.approx(500)


def test_a_slow_reader_or_one_that_needs_much_memory_is_short() -> None:
    reads = dict(rounds(node_batch=[79.0], strided=[10.0])[0])
    reads["chunked_shuffle"] = dataclasses.replace(reads["chunked_shuffle"], peak_mb=201)
    reads[PLAIN] = dataclasses.replace(reads[PLAIN], peak_mb=900)  # of the plain read: does not count
    short = {name for name, figure in by_name([reads]).items() if not figure.ok}
    assert short == {"node_batch_over_plain_4_kb", "reader_peak_mb_4_kb"}


@pytest.mark.parametrize("cold", [0.5, None])
def test_a_read_that_was_not_cold_gives_no_number(cold: float | None) -> None:
    several = [dict(one) for one in rounds(node_batch=[100, 100, 100])]
    several[1]["node_batch"] = reading(5000, cold)
    figures = by_name([*several])
    refused = figures["node_batch_over_plain_4_kb"]
    assert math.isnan(refused.value)
    assert not refused.ok
    assert refused.detail.startswith("refused: 1 of 6 reads not cold: ")
    assert ("not known" if cold is None else "50.0%") in refused.detail
    assert figures["chunked_shuffle_over_plain_4_kb"].ok
    several[1]["node_batch"] = reading(100, 0.98)
    assert by_name([*several])["node_batch_over_plain_4_kb"].ok


def test_every_arm_reads_once_a_round_after_a_plain_read_that_is_dropped(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seen: list[str] = []
    monkeypatch.setattr(readers, "drop", lambda path: seen.append("drop"))

    def note(arm: Arm) -> Reading:
        seen.append(arm.reader)
        return reading(100)

    made = readers.in_turn({name: Arm(path="x", reader=name) for name in "abc"}, note)
    assert len(made) == readers.ROUNDS
    assert seen[:3] == [PLAIN, "drop", "a"]
    assert "".join(seen[2::3]) == "abcbcacababcbca"
    assert set(seen[0::3]) == {PLAIN}
    assert set(seen[1::3]) == {"drop"}


def test_a_full_disk_is_refused_with_the_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(readers, "ROOM", 1e9)
    (figure,) = readers.readers()
    assert figure.name == "readers_free_gb"
    assert not figure.ok
    assert "TMPDIR" in figure.detail


@pytest.fixture
def scratch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where temporary files go now."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def test_the_set_goes_when_it_is_interrupted(scratch: Path) -> None:
    sizes: list[int] = []

    def interrupted() -> None:
        with packed_set(4096, 8) as path:
            sizes.append(path.stat().st_size)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert sizes[0] > 8 * 4096
    assert os.listdir(scratch) == []


@pytest.mark.usefixtures("scratch")
def test_every_arm_gives_all_its_bytes_in_a_process_without_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(readers, "STRIDED_BYTES", 16 * 4096 * readers.BATCH // readers.RANKS)
    records = 20 * readers.BATCH
    with packed_set(4096, records) as path:
        arms = readers.arms(path, 4096, records)
        useful = {name: readers.read(arm).useful_bytes for name, arm in arms.items()}
        alone = readers.read_alone(arms["node_batch"])
    whole = records * 4096
    assert useful["chunked_shuffle"] == useful["node_batch"] == alone.useful_bytes == whole
    assert useful["strided"] == 16 * 4096 * readers.BATCH // readers.RANKS
    assert useful[PLAIN] >= whole
    assert alone.peak_mb < 200 or math.isnan(alone.peak_mb)  # with torch it would be 400


# ------------------------------------------------------------------ figures and links


def logs(mean: float, deviation: float, n: int) -> list[float]:
    """n ratios whose logarithms have this mean and sample deviation exactly."""
    spread = deviation * math.sqrt((n - 1) / n)
    return [math.exp(math.log(mean) + (spread if place % 2 else -spread)) for place in range(n)]


@pytest.mark.parametrize(("mean", "limit"), [(1.010, 1.0163), (1.015, 1.0213)])
def test_upper_limit_of_30_pairs(mean: float, limit: float) -> None:
    assert upper_limit(logs(mean, 0.02, 30)) == pytest.approx(limit, abs=5e-5)


def test_a_line_says_ok_or_short() -> None:
    assert Figure("x", 1.01, 1.03, "").line() == "bench x 1.01 1.03 ok"
    assert Figure("x", 1.04, 1.03, "").line() == "bench x 1.04 1.03 short"
    assert Figure("x", 1.04, None, "").line() == "bench x 1.04 - ok"
    assert Figure("x", 5.2, 5, "", at_least=True).line() == "bench x 5.2 >=5 ok"
    assert Figure("x", 4.9, 5, "", at_least=True).line() == "bench x 4.9 >=5 short"
    assert not Figure("x", math.nan, 5, "", at_least=True).ok
    assert not Figure("x", math.nan, 1.03, "").ok


def message(took_s: float, asked_s: float = 1.0) -> Message:
    return Message(size=MIB, pause_ms=20, asked_s=asked_s, took_s=took_s)


def test_a_link_is_judged_by_its_worst_long_message_and_its_fastest_one() -> None:
    messages = [message(1.02), message(1.25), message(0.01, asked_s=0.015)]
    off, fastest = links.of_rate("x", messages, floor_s=0.001, too_fast=1.1)
    assert (off.name, fastest.name) == ("x_off", "x_fastest")
    assert off.value == pytest.approx(0.2)  # of its rate is lacking
    assert fastest.value == pytest.approx(1.5)  # though it is too short for `off`
    assert (off.ok, fastest.ok) == (False, False)
    assert "0.800 of asked, 1 MiB after 20 ms; floor 1.0 ms" in off.detail
    off, fastest = links.of_rate("x", messages[:1], floor_s=0.1, too_fast=1.1)
    assert math.isnan(off.value)
    assert (off.ok, fastest.ok) == (True, True)
