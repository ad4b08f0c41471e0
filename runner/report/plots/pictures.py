"""Figures on the page. One that cannot be drawn says why and costs nothing else."""

import os
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from markupsafe import Markup

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True, kw_only=True)
class Plot:
    """A figure to be drawn.

    kind: seeds the ids inside of the SVG, so that equal figures are equal files.
    file: name of the files without ending. table: name of the CSV file behind it, without ending.
    corner: what the figure itself says of where its numbers come from.
    draw: imports matplotlib when it is called; without a working matplotlib the tables are still written.
    alternative: the figure in words, for readers who cannot see it.
    """

    kind: str
    file: str
    title: str
    caption: str
    table: str
    corner: str
    draw: "Callable[[], Figure]"
    alternative: str


@dataclass(frozen=True, kw_only=True)
class Picture:
    """A figure on the page. `svg` is None if it could not be drawn, and `failure` says why.

    `files`: the names of the same figure as SVG and as PDF. `table`: of the CSV file behind it.
    """

    title: str
    files: tuple[str, ...] = ()
    caption: str = ""
    alternative: str = ""
    table: str = ""
    svg: Markup | None = None
    failure: str = ""


def picture(plot: Plot, output: Path) -> Picture:
    """Draw `plot` and write it to the folder `output` as SVG and as PDF."""
    try:
        with _without_backend():
            from .style import drawn

        svg, pdf = drawn(plot.kind, plot.draw, corner=plot.corner)
    except Exception as error:
        return Picture(title=plot.title, failure=f"not drawn: {type(error).__name__}: {error}")
    files = (f"{plot.file}.svg", f"{plot.file}.pdf")
    (output / files[0]).write_text(svg, encoding="utf-8")
    (output / files[1]).write_bytes(pdf)
    return Picture(
        title=plot.title,
        files=files,
        caption=plot.caption,
        alternative=plot.alternative,
        table=f"{plot.table}.csv",
        svg=_inline(svg, f"{plot.file}-"),
    )


@contextmanager
def _without_backend() -> Iterator[None]:
    """Unset MPLBACKEND while matplotlib is imported: a wrong name would raise, and no window is opened."""
    backend = os.environ.pop("MPLBACKEND", None)
    try:
        yield
    finally:
        if backend is not None:
            os.environ["MPLBACKEND"] = backend


def _inline(svg: str, prefix: str) -> Markup:
    """The `<svg>` element alone, its ids made unique on the page."""
    element = svg[svg.index("<svg") :]
    element = re.sub(r'\bid="', f'id="{prefix}', element)
    element = re.sub(r'href="#', f'href="#{prefix}', element)
    element = re.sub(r"url\(#", f"url(#{prefix}", element)
    return Markup(element)
