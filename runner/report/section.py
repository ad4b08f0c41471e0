"""The contract of a section: tables, figures and a block of the page, in one file of `sections/`."""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from . import words
from .claims.judge import JudgedClaim
from .claims.speedups import Speedups
from .data.arms import Comparison, row_of
from .data.load import Run
from .plots.pictures import Plot

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Rows = list[dict[str, Any]]
MARGIN = 1.01  # times as long: below it two arms count as equally fast
_T = TypeVar("_T")


@dataclass(frozen=True, kw_only=True)
class Results:
    """What all sections are made of. `speedups` and `judged`: ratios and verdicts of the comparisons."""

    runs: list[Run]
    comparisons: list[Comparison]
    speedups: list[Speedups]
    judged: list[JudgedClaim]

    @cached_property
    def configured(self) -> list[Comparison]:
        """The comparisons as configured: those under an assumption belong to the section `sensitivity`."""
        return [comparison for comparison in self.comparisons if not comparison.assumption]

    @property
    def studies(self) -> list[str]:
        """The names of all studies, sorted."""
        return sorted({run.study for run in self.runs})

    @property
    def worlds(self) -> list[str]:
        """Where the numbers come from."""
        return sorted({comparison.world_in_words for comparison in self.comparisons})

    @property
    def untimed(self) -> list[tuple[str, int]]:
        """Each reason why times are not to be trusted, with the number of runs that give it."""
        return sorted(Counter(reason for run in self.runs for reason in run.timing_reasons).items())

    @property
    def trouble(self) -> list[Run]:
        """Runs that did not finish or cannot be trusted."""
        return [run for run in self.runs if run.state != "finished" or run.invalid]

    @property
    def resumed(self) -> list[Run]:
        return [run for run in self.runs if run.resumed]

    @property
    def copied(self) -> list[Run]:
        """Runs whose directory was found more than once."""
        return [run for run in self.runs if run.copies]

    @property
    def damage(self) -> list[str]:
        """A sentence for each place of the records that could not be read."""
        return [sentence for run in self.runs for sentence in run.damage]

    @cached_property
    def titles(self) -> list[str]:
        """The title of each configured comparison, in their order."""
        worlds, sizes = {c.world for c in self.configured}, {c.size for c in self.configured}
        return [
            ", ".join(
                [
                    f"{comparison.model} on {comparison.dataset}",
                    *([words.world(comparison.world)] if len(worlds) > 1 else []),
                    *([comparison.size] if len(sizes) > 1 and comparison.size else []),
                    *([row] if (row := row_of(comparison, self.configured)) else []),
                ]
            )
            for comparison in self.configured
        ]

    def anchors(self, comparisons: Iterable[Comparison]) -> list[tuple[str, str]]:
        """Where the page has the commands of these comparisons: anchor and title of each."""
        places = {id(comparison) for comparison in comparisons}
        return [
            (f"commands-{number}", title)
            for number, (comparison, title) in enumerate(zip(self.configured, self.titles, strict=True), 1)
            if id(comparison) in places
        ]


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
        """The rows of each table to be written, by its name (`NAME.csv`)."""
        return {}

    def printed(self) -> dict[str, Rows]:
        """The rows, all of text, of each table to be written for printing (`NAME.md`, `NAME.tex`)."""
        return {}

    def plots(self) -> list[Plot]:
        """The figures to be drawn."""
        return []


def with_rows(**tables: Rows) -> dict[str, Rows]:
    """The tables that have a row."""
    return {name: rows for name, rows in tables.items() if rows}


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
    draw: "Callable[[_T], Figure]",
    alternative: Callable[[_T], str],
) -> list[Plot]:
    """A figure for each of `items`: `kind` for one, else `kind_1`, `kind_2`, …; its table is `kind` too."""
    return [
        Plot(
            kind=kind,
            file=f"{kind}_{number}" if len(items) > 1 else kind,
            title=title,
            caption=caption,
            table=kind,
            corner=corner(item),
            draw=partial(draw, item),
            alternative=alternative(item),
        )
        for number, item in enumerate(items, 1)
    ]
