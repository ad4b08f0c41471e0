"""Which path a packed file may be written to: none at which something else would be lost."""

from pathlib import Path

from ...datasets.packed.format import Description, described
from ...datasets.packed.packed_file import START_BYTES
from ...strategies.errors import ConfigError


def refuse_taken(path: Path, wanted: Description) -> None:
    """Raises ConfigError unless `path` is free, empty, or a packed file (also a damaged one) of `wanted`'s
    data set and order."""
    if (held := _held(path, wanted)) is not None:
        raise ConfigError(f"{path}: {held}; delete it or take another reader.path")


def _held(path: Path, wanted: Description) -> str | None:
    """What would be lost, in words."""
    if not path.exists():
        return None
    if not path.is_file():
        return "is no regular file"
    with path.open("rb") as file:
        start = file.read(START_BYTES)
    if not start:
        return None
    found = described(start)
    if found is None:
        return "holds something else than a packed file that can be known again"
    if (found.name, found.shuffle_seed) == (wanted.name, wanted.shuffle_seed):
        return None
    return (
        f"holds the packed file of {found.name} with shuffle_seed {found.shuffle_seed}, and this one would "
        f"be of {wanted.name} with {wanted.shuffle_seed}"
    )
