"""Looks at every file of a data set before training: which are bad and why, which rules apply to how many."""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from .dataset import Tell, silent
from .end_marks import looks_whole
from .pixels import BadImage, PixelRules, decode, header

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


def check(
    root: Path, paths: Sequence[str], how: str, rules: PixelRules, *, threads: int, tell: Tell = silent
) -> Checked:
    """Look at the files `paths` below `root`; results in their order.

    how: `headers` reads the header, and all of a JPEG or PNG file that lacks its end; `decode` all of every
    file; `none` nothing.
    """
    found = Checked(bad=[], conversions=Counter())
    if how == "none":
        return found

    def look(path: str) -> tuple[str, str | None, tuple[str, ...]]:
        try:
            about = header(str(root / path), rules)
            if how == "decode" or not looks_whole(str(root / path)):
                decode(str(root / path), rules)
        except BadImage as error:
            return path, error.reason, ()
        return path, None, about.conversions

    for path, reason, conversions in in_threads(look, paths, threads=threads, tell=tell):
        if reason is None:
            found.conversions.update(conversions)
        else:
            found.bad.append((path, reason))
    return found


def in_threads(look: Callable[[A], B], items: Sequence[A], *, threads: int, tell: Tell) -> Iterable[B]:
    """`look` of every item, in order, by `threads` threads; never more than a few pieces wait."""
    with ThreadPoolExecutor(threads) as pool:
        for start in range(0, len(items), _PIECE * threads):
            piece = items[start : start + _PIECE * threads]
            yield from pool.map(look, piece)
            tell(start + len(piece), len(items))


def refusal(where: str, bad: Sequence[tuple[str, str]], total: int) -> ValueError:
    """The error that names the bad files, the first of them if they are many."""
    lines = [f"  {path}: {reason}" for path, reason in bad[:SHOWN]]
    more = [f"  ... and {len(bad) - SHOWN} more"] if len(bad) > SHOWN else []
    head = f"{where}: {len(bad)} of {total} files are bad; mend or remove them, or set dataset.bad_files=skip"
    return ValueError("\n".join([head, *lines, *more]))
