"""Figures as files and on the page: equal input gives equal bytes, and one that fails costs nothing else."""

import io
import re
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import matplotlib
from markupsafe import Markup
from matplotlib.figure import Figure

from .style import BAND, EDGE, GRID, INK, PAPER, SOFT, TOLERANCE, plain

# Of a figure on the page: these colours follow the reader's light or dark.
PAGE_COLOURS = {
    INK: "var(--ink)",
    SOFT: "var(--soft)",
    EDGE: "var(--edge)",
    GRID: "var(--line)",
    PAPER: "var(--paper)",
    BAND: "var(--band)",
    TOLERANCE: "var(--tolerance)",
}
SETTINGS: dict[Any, Any] = {
    "text.parse_math": False,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": EDGE,
    "axes.labelcolor": INK,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": GRID,
    "xtick.color": SOFT,
    "ytick.color": INK,
    "text.color": INK,
    "hatch.linewidth": 0.6,
    "figure.constrained_layout.use": True,
}


@dataclass(frozen=True, kw_only=True)
class Plot:
    """A figure of the page.

    file: name of the files without ending; seeds the ids inside of the SVG. table: name of its CSV file.
    corner: what the figure itself says of where its numbers come from.
    alternative: the figure in words, for readers who cannot see it.
    draw: for a wide window, and for a narrow one where one figure does not serve both.
    svgs: as many, once they are drawn; empty if one could not be drawn: `failure` then says why.
    """

    file: str
    title: str
    caption: str
    table: str
    corner: str
    alternative: str
    draw: tuple[Callable[[], Figure], ...]
    svgs: tuple[Markup, ...] = ()
    failure: str = ""

    @property
    def files(self) -> tuple[str, str]:
        """The names of the SVG and the PDF file."""
        return f"{self.file}.svg", f"{self.file}.pdf"


def picture(plot: Plot, output: Path) -> Plot:
    """Draw `plot` and write it, as for a wide window, to the folder `output` as SVG and as PDF."""
    try:
        drawn = [_drawn(plot, draw) for draw in plot.draw]
    except Exception as error:
        return replace(plot, failure=f"not drawn: {type(error).__name__}: {error}")
    (svg, pdf), *_ = drawn
    svg_file, pdf_file = plot.files
    (output / svg_file).write_text(svg, encoding="utf-8")
    (output / pdf_file).write_bytes(pdf)
    prefixes = (f"{plot.file}-", f"{plot.file}-narrow-")
    return replace(
        plot, svgs=tuple(_inline(svg, name) for (svg, _), name in zip(drawn, prefixes, strict=False))
    )


@contextmanager
def drawing(salt: str) -> Iterator[None]:
    """Matplotlib's own defaults plus ours, whatever the user's settings file says. `salt` seeds the ids."""
    with matplotlib.rc_context(), warnings.catch_warnings():
        # A name in a script that the font lacks shows boxes: no reason to stop.
        warnings.filterwarnings("ignore", message=".*[Gg]lyph.*")
        matplotlib.rcdefaults()
        matplotlib.rcParams.update({**SETTINGS, "svg.hashsalt": salt})
        yield


def _drawn(plot: Plot, draw: Callable[[], Figure]) -> tuple[str, bytes]:
    """The figure that `draw` makes as SVG and as PDF, the corner of `plot` above it."""
    with drawing(plot.file):
        figure, svg, pdf = draw(), io.StringIO(), io.BytesIO()
        # A title, so that the layout keeps room for it.
        figure.suptitle(plain(plot.corner), x=0.995, ha="right", fontsize=7, color=SOFT, style="italic")
        # No date, no place and no version: equal figures are equal files.
        nothing = dict.fromkeys(("Date", "Creator", "Format", "Type"))
        figure.savefig(svg, format="svg", facecolor="white", metadata=nothing)
        # Laid out already: the same places without the work.
        figure.set_layout_engine("none")
        nothing = dict.fromkeys(("CreationDate", "Creator", "Producer"))
        figure.savefig(pdf, format="pdf", facecolor="white", metadata=nothing)
    return "".join(f"{line.rstrip()}\n" for line in svg.getvalue().splitlines()), pdf.getvalue()


def _inline(svg: str, prefix: str) -> Markup:
    """The `<svg>` element alone: its ids unique on the page, its colours those of the light or dark page."""
    element = svg[svg.index("<svg") :]
    element = re.sub(r'\bid="|href="#|url\(#', lambda match: f"{match[0]}{prefix}", element)
    return Markup(re.sub("#[0-9a-f]{6}", lambda match: PAGE_COLOURS.get(match[0], match[0]), element))
