"""The digest of a data set covers what its files hold, whatever their names, sizes and times are."""

import os
from collections.abc import Mapping
from pathlib import Path

import pytest

from daso_bench.datasets import file_contents
from daso_bench.datasets.file_contents import HEAD, PIECE, digest_of_files, sample_of


def written(root: Path, contents: Mapping[str, bytes | bytearray]) -> str:
    for name, content in contents.items():
        (root / name).write_bytes(content)
    return digest_of_files(str(root), list(contents))


@pytest.mark.parametrize("place", [0, HEAD - 1, 3 * HEAD - 1, 3 * HEAD - PIECE])
def test_a_changed_byte_at_the_begin_or_the_end_changes_the_digest(tmp_path: Path, place: int) -> None:
    content = bytearray(os.urandom(3 * HEAD))
    before = written(tmp_path, {"a": content, "b": b"small"})
    assert written(tmp_path, {"a": content, "b": b"small"}) == before
    content[place] ^= 1
    assert written(tmp_path, {"a": content, "b": b"small"}) != before


def test_little_is_read_of_many_and_large_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file_contents, "FIRST_BYTES", 8 * PIECE)
    content = bytearray(os.urandom(HEAD))
    before = written(tmp_path, {str(number): content for number in range(4)})
    content[2 * PIECE] ^= 1  # behind the 4 KiB that are left for each of four files
    unread = written(tmp_path, {str(number): content for number in range(4)}) == before
    content[PIECE] ^= 1
    assert written(tmp_path, {str(number): content for number in range(4)}) != before
    assert unread


def test_what_is_no_file_waits_for_nobody(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    assert digest_of_files(str(tmp_path), ["pipe", "missing"]) == digest_of_files(str(tmp_path), ["x", "y"])


def test_a_sample_is_spread_over_all_files() -> None:
    paths = [str(number) for number in range(6400)]
    assert sample_of(paths) == [str(100 * number) for number in range(64)]
    assert sample_of(paths[:3]) == ["0", "1", "2"]
    assert sample_of([]) == []
