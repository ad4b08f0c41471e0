"""The contract of a section: tables, figures and a block of the page, in one file of `sections/`."""

from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import Any, ClassVar, TypeVar

from .plots.pictures import Plot
from .results import Results

Rows = list[dict[str, Any]]
_T = TypeVar("_T")


class Section:
    """Base class of all sections: a file with a subclass in `runner/report/sections/`, or in `sections/` of
    `--config-dir`, is found by being there.

    order: place on the page, ascending.
    template: Jinja source of the block on the page; "" for a section with tables alone. It sees the section
        itself as `section`, its figures as `pictures` (in the order of `plots`), and what `build.py` gives to
        all templates: `results`, `words`, `swatch`, the macros of `macros.html.j2` as `page`.
    """

    order: ClassVar[int] = 100
    template: ClassVar[str] = ""

    def __init__(self, results: Results) -> None:
        self.results = results

    def tables(self) -> dict[str, Rows]:
        """The rows of each table by its name; one that has rows is written as `NAME.csv`."""
        return {}

    def printed(self) -> dict[str, Rows]:
        """The rows, all of text, of each table for a paper (`NAME.csv`, `NAME.tex`)."""
        return {}

    def plots(self) -> list[Plot]:
        """The figures to be drawn."""
        return []


def grouped(items: Iterable[_T], key: Callable[[_T], Hashable]) -> list[list[_T]]:
    """The items of each key together, in the order of the first of each."""
    groups: dict[Hashable, list[_T]] = defaultdict(list)
    for item in items:
        groups[key(item)].append(item)
    return list(groups.values())


def numbered(kind: str, items: Sequence[_T]) -> list[tuple[str, _T]]:
    """Each item with the name of its file: `kind` for one alone, else `kind_1`, `kind_2`, …"""
    return [(f"{kind}_{number}" if len(items) > 1 else kind, item) for number, item in enumerate(items, 1)]
