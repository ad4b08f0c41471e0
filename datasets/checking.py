"""What comes of looking at every file of a data set before training; several threads look."""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TypeVar

from .dataset import Tell

CHECKS = ("headers", "decode", "none")
POLICIES = ("stop", "skip")
SHOWN = 20  # bad files named in an error
_PIECE = 256  # files given to a thread at a time

A = TypeVar("A")
B = TypeVar("B")


@dataclass(frozen=True, kw_only=True)
class Checked:
    """bad: (path, reason); conversions: files by the name of the rule that applies to them."""

    bad: list[tuple[str, str]]
    conversions: Counter[str]


def in_threads(look: Callable[[A], B], items: Sequence[A], *, threads: int, tell: Tell) -> Iterable[B]:
    """`look` of every item, in order, by `threads` threads; never more than a few pieces wait."""
    with ThreadPoolExecutor(threads) as pool:
        for start in range(0, len(items), _PIECE * threads):
            piece = items[start : start + _PIECE * threads]
            yield from pool.map(look, piece)
            tell(start + len(piece), len(items))


class BadFiles(ValueError):
    """Files of a data set that cannot be used. `bad`: (path, reason) of each; the text names the first."""

    def __init__(self, where: str, bad: Sequence[tuple[str, str]], total: int) -> None:
        self.bad = list(bad)
        lines = [f"  {path}: {reason}" for path, reason in bad[:SHOWN]]
        more = [f"  ... and {len(bad) - SHOWN} more"] if len(bad) > SHOWN else []
        way_out = "mend or remove them, or set dataset.bad_files=skip"
        head = f"{where}: {len(bad)} of {total} files are bad; {way_out}"
        super().__init__("\n".join([head, *lines, *more]))
