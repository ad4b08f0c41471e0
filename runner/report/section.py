"""The contract of a section: tables, figures and a block of the page, in one file of `sections/`."""

from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Sequence
from functools import partial
from typing import Any, ClassVar, TypeVar

from matplotlib.figure import Figure

from .data.arms import Comparison
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


def looks_of(comparisons: Iterable[Comparison]) -> dict[str, int]:
    """Label and index of the look of every arm in `comparisons`, those of ddp first."""
    arms = [arm for comparison in comparisons for arm in comparison.arms]
    return {arm.label: arm.index for arm in sorted(arms, key=lambda arm: arm.runs[0].strategy != "ddp")}


def one_each(
    kind: str,
    items: Sequence[_T],
    *,
    title: str,
    caption: str,
    corner: Callable[[_T], str],
    draw: Callable[[_T], Figure],
    alternative: Callable[[_T], str],
    narrow: Callable[[_T], Figure] | None = None,
) -> list[Plot]:
    """A figure for each of `items`: `kind` for one, else `kind_1`, `kind_2`, …; its table is `kind` too.

    `narrow`: draws it for a narrow window, where one figure does not serve both.
    """
    return [
        Plot(
            file=f"{kind}_{number}" if len(items) > 1 else kind,
            title=title,
            caption=caption,
            table=kind,
            corner=corner(item),
            alternative=alternative(item),
            draw=tuple(partial(one, item) for one in (draw, narrow) if one),
        )
        for number, item in enumerate(items, 1)
    ]
