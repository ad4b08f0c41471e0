"""Small packed files: of records of one size, and of records of many."""

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from daso_bench.datasets.packed.packed_file import Description, writing

DESCRIPTION = Description(name="some", classes=7, shape=(3, 4), encoding="uint8", made="counted in a test")


def content_of(record: int, size: int) -> bytes:
    """Bytes that no other record has at any of its places (for numbers below 65536)."""
    return bytes((record * 31 + (record >> 8) + 7 * place) % 256 for place in range(size))


@pytest.fixture(scope="session")
def make_packed(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """Makes a file of records of `sizes`, or of `records` of `size` bytes; record k has label k % 7."""
    folder = tmp_path_factory.mktemp("packed")
    made: dict[object, Path] = {}

    def make(records: int = 0, size: int = 12, sizes: Sequence[int] = ()) -> Path:
        key = (records, size, tuple(sizes))
        if key not in made:
            path = folder / f"{len(made)}.packed"
            with writing(path, DESCRIPTION, record_bytes=None if sizes else size) as add:
                for record, length in enumerate(sizes or [size] * records):
                    add(content_of(record, length), record % 7)
            made[key] = path
        return made[key]

    return make
