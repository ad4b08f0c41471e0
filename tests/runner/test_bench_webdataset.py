"""The bench beside WebDataset: skipped without it, in turn and paired with it; no record is missed."""

import importlib.util
import io
import math
import sys
import tarfile
import tempfile
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any, Self

import pytest

from daso_bench.runner.bench import webdataset, webdataset_shards
from daso_bench.runner.bench.figures import Figure
from daso_bench.runner.bench.reader_arms import Reading
from daso_bench.runner.bench.reader_sets import packed_set
from daso_bench.runner.bench.webdataset import OURS, THEIRS
from daso_bench.runner.bench.webdataset_shards import Shards, read, shards_of


class ShardWriter:
    """As much of WebDataset's as is used."""

    def __init__(self, pattern: str, maxcount: int, maxsize: int, verbose: int) -> None:
        self._tar = tarfile.TarFile(pattern % 0, "w")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._tar.close()

    def write(self, sample: dict[str, Any]) -> None:
        """One file for each part of the sample."""
        for name in ("bin", "cls"):
            told = tarfile.TarInfo(f"{sample['__key__']}.{name}")
            told.size = len(sample[name])
            self._tar.addfile(told, io.BytesIO(sample[name]))


class WebDataset:
    """As much of WebDataset's as is used, in the order of the file."""

    lost = 0

    def __init__(self, paths: list[str], shardshuffle: int, seed: int) -> None:
        self._paths = paths

    def shuffle(self, count: int, seed: int) -> Iterator[dict[str, bytes]]:
        """All samples but as many as are lost."""
        for path in self._paths:
            with tarfile.open(path) as tar:
                content = [tar.extractfile(member) for member in tar.getmembers()]
                parts = [file.read() for file in content if file is not None]
            for place in range(0, len(parts) - 2 * self.lost, 2):
                yield {"bin": parts[place], "cls": parts[place + 1]}


@pytest.fixture
def library(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> type[WebDataset]:
    """A WebDataset in memory; temporary files go to the test's folder."""
    module = ModuleType("webdataset")
    vars(module).update(ShardWriter=ShardWriter, WebDataset=WebDataset)
    monkeypatch.setitem(sys.modules, "webdataset", module)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return WebDataset


def test_without_webdataset_it_is_skipped_with_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    (figure,) = webdataset.measure()
    assert figure.ok
    assert figure.detail.endswith("pip install webdataset")


def test_shards_have_every_record_with_its_label_and_go_with_the_set(
    library: type[WebDataset], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with packed_set(100, 30) as path, shards_of(path) as shards:
        assert (shards.records, shards.size) == (30, 100)
        content = path.read_bytes()
        seen = list(library([str(found) for found in shards.paths], 1, 0).shuffle(1, 0))
        assert [one["bin"] for one in seen] == [content[4096 + 100 * k :][:100] for k in range(30)]
        assert [one["cls"] for one in seen] == [str(k % 10).encode() for k in range(30)]
        assert read(shards).useful_bytes == 3000
        monkeypatch.setattr(library, "lost", 1)
        with pytest.raises(RuntimeError, match=r"^2900 bytes of records came"):
            read(shards)
    assert list(tmp_path.iterdir()) == []


def reading(records_s: float, cold: float = 1.0, peak_mb: float = 50) -> Reading:
    """Of 1000 records of 4096 bytes."""
    size = 1000 * 4096
    cost = {"seconds": 1000 / records_s, "disk_bytes": round(cold * size)}
    return Reading(useful_bytes=size, jumps=1, peak_mb=peak_mb, grown_mb=10, **cost)


def figures(rounds: list[dict[str, Reading]], folder: Path) -> dict[str, Figure]:
    (folder / "0.tar").write_bytes(bytes(2 * 1000 * 4096))
    shards = Shards(folder=str(folder), records=1000, size=4096)
    return {figure.name: figure for figure in webdataset.of_size(rounds, shards)}


def test_ratios_are_of_one_alternation_and_of_cold_reads_alone(tmp_path: Path) -> None:
    rounds = [
        {OURS: reading(ours), THEIRS: reading(theirs)}
        for ours, theirs in ((100, 50), (1000, 100), (300, 100))
    ]
    found = figures(rounds, tmp_path)
    assert found["chunked_shuffle_over_webdataset_4_kb"].samples == pytest.approx((2, 10, 3))
    assert found["chunked_shuffle_over_webdataset_4_kb"].value == pytest.approx(3)
    assert found["webdataset_records_s_4_kb"].value == pytest.approx(100)
    assert found["tar_over_records_4_kb"].value == 2
    rounds[1][THEIRS] = reading(100, cold=0.5, peak_mb=80)
    found = figures(rounds, tmp_path)
    assert math.isnan(found["chunked_shuffle_over_webdataset_4_kb"].value)
    assert found["webdataset_records_s_4_kb"].detail.startswith("refused: 1 of 6 reads not cold")
    assert found["webdataset_peak_mb_4_kb"].value == 80


def test_both_read_once_a_round_and_rounds_begin_with_the_other() -> None:
    seen: list[str] = []

    def note(name: str) -> Reading:
        seen.append(name)
        return reading(1)

    reads = {name: (lambda name=name: note(name)) for name in (OURS, THEIRS)}
    assert len(webdataset.alternate(reads, loads := [])) == webdataset.ROUNDS
    assert seen[:4] == [OURS, THEIRS, THEIRS, OURS]
    assert len(loads) == len(seen) == 2 * webdataset.ROUNDS


def test_a_process_that_fails_says_what_it_said(tmp_path: Path) -> None:
    if importlib.util.find_spec("webdataset") is not None:
        pytest.skip("WebDataset is installed, and fails in words of its own")
    shards = Shards(folder=str(tmp_path), records=1, size=1)
    with pytest.raises(RuntimeError, match=r"(?s)^webdataset of .* failed: .*No module named 'webdataset'"):
        webdataset_shards.cold_read(shards)
