"""What the system's page cache has of a file: asked of the system, here and by another way."""

import math
import os
from pathlib import Path

import pytest

from daso_bench.runner.machine import page_cache
from daso_bench.runner.machine.page_cache import drop, read_in, remark

MEMORY = Path("/dev/shm")


def cached(path: Path) -> float | None:
    return page_cache.cached(path.parent, [path.name])


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """Two MiB and some bytes."""
    path = tmp_path / "file"
    path.write_bytes(bytes(2 * 2**20 + 77))
    return path


def test_a_file_is_dropped_from_the_cache_and_read_into_it(file: Path) -> None:
    assert cached(file) == 1, "it was written a moment ago"
    drop(file)
    assert cached(file) == 0
    with file.open("rb", buffering=0) as opened:
        os.posix_fadvise(opened.fileno(), 0, 0, os.POSIX_FADV_RANDOM)
        opened.read(4096)
    assert 0 < (cached(file) or 0) < 0.5
    read_in(file)
    assert cached(file) == 1


def test_a_large_file_is_looked_at_in_parts(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(page_cache, "MAPPED_BYTES", 2**20)
    drop(file)
    assert cached(file) == 0
    with file.open("rb", buffering=0) as opened:
        os.posix_fadvise(opened.fileno(), 0, 0, os.POSIX_FADV_RANDOM)
        opened.seek(2 * 2**20)
        opened.read(77)
    assert cached(file) == pytest.approx(1 / 513)


def test_of_many_files_some_are_looked_at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names = [f"{number}.bin" for number in range(8)]
    for number, name in enumerate(names):
        (tmp_path / name).write_bytes(bytes(8192))
        if number < 2:
            drop(tmp_path / name)
    assert page_cache.cached(tmp_path, names) == 0.75
    assert page_cache.cached(tmp_path, [*names, "gone.bin"]) == 0.75
    assert page_cache.cached(tmp_path, []) is None
    monkeypatch.setattr(page_cache, "SAMPLED_FILES", 2)
    assert page_cache.cached(tmp_path, names) == 0.5, "files 0 and 4"


@pytest.mark.skipif(not MEMORY.is_dir(), reason="no file system in memory")
def test_a_file_in_memory_is_never_cold() -> None:
    path = MEMORY / f"daso-bench-test-{os.getpid()}"
    try:
        path.write_bytes(bytes(10_000))
        drop(path)
        assert cached(path) == 1
    finally:
        path.unlink()


def test_of_somebody_elses_file_the_system_does_not_tell(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: os.stat(file).st_uid + 1)
    monkeypatch.setattr(os, "access", lambda path, how: how != os.W_OK)
    assert cached(file) is None


def test_a_cache_that_is_not_as_asked_is_a_label() -> None:
    assert remark(cold=True, warm=False, lacking=0.02) is None
    assert remark(cold=False, warm=False, lacking=0.0) is None
    told = "were in the system's cache when training began"
    expected = f"reader.cold=true: it was not so: 40% of the packed file's pages {told}"
    assert remark(cold=True, warm=False, lacking=0.4) == expected
    found = remark(cold=False, warm=True, lacking=0.4)
    assert found == expected.replace("cold", "warm").replace("were in", "were not in")
    unknown = remark(cold=True, warm=False, lacking=math.nan)
    assert unknown is not None
    assert unknown.startswith("reader.cold=true: not known: the system does not tell")
