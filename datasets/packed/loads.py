"""What a reader makes: one load a step, which says what belongs to the step and how to get it into memory."""

from collections.abc import Callable, Generator, Iterable, Iterator
from dataclasses import dataclass

from .orders import Epoch, Records


@dataclass(frozen=True, kw_only=True)
class Stretch:
    """The steps of epoch `number` from `step` on (0-based)."""

    number: int
    epoch: Epoch
    step: int = 0


@dataclass(frozen=True, kw_only=True)
class Load:
    """One step of a reader: `records`, one member's after the other's, and how to get them into memory.

    counts: records by member. fill: writes the records, one after another, to the beginning of what it is
    given; raises DamagedFile. Loads are filled in the order in which they are made, each once.
    """

    number: int
    step: int
    records: Records
    counts: tuple[int, ...]
    fill: Callable[[memoryview], None]


Reader = Generator[Load, None, None]


def steps(stretches: Iterable[Stretch]) -> Iterator[tuple[Stretch, int]]:
    """Every step of every stretch."""
    for stretch in stretches:
        for step in range(stretch.step, stretch.epoch.steps):
            yield stretch, step
