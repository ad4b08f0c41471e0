"""Figures on the page. One that cannot be drawn says why and costs nothing else."""

import os
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from markupsafe import Markup

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True, kw_only=True)
class Plot:
    """A figure of the page.

    file: name of the files without ending; seeds the ids inside of the SVG. table: name of its CSV file.
    corner: what the figure itself says of where its numbers come from.
    draw: imports matplotlib when it is called; without a working matplotlib the tables are still written.
    alternative: the figure in words, for readers who cannot see it.
    narrow: draws it for a narrow window; None if one figure serves both.
    svg: None until it is drawn, and if it could not be drawn; `failure` then says why. narrow_svg: likewise.
    """

    file: str
    title: str
    caption: str
    table: str
    corner: str
    draw: "Callable[[], Figure]"
    alternative: str
    narrow: "Callable[[], Figure] | None" = None
    svg: Markup | None = None
    narrow_svg: Markup | None = None
    failure: str = ""

    @property
    def files(self) -> tuple[str, str]:
        """The names of the SVG and the PDF file."""
        return f"{self.file}.svg", f"{self.file}.pdf"


def picture(plot: Plot, output: Path) -> Plot:
    """Draw `plot` and write it to the folder `output` as SVG and as PDF."""
    try:
        with _without_backend():
            from .style import drawn

        svg, pdf = drawn(plot.file, plot.draw, corner=plot.corner)
        narrow = drawn(plot.file, plot.narrow, corner=plot.corner)[0] if plot.narrow else None
    except Exception as error:
        return replace(plot, failure=f"not drawn: {type(error).__name__}: {error}")
    svg_file, pdf_file = plot.files
    (output / svg_file).write_text(svg, encoding="utf-8")
    (output / pdf_file).write_bytes(pdf)
    narrow_svg = _inline(narrow, f"{plot.file}-narrow-") if narrow else None
    return replace(plot, svg=_inline(svg, f"{plot.file}-"), narrow_svg=narrow_svg)


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
    """The `<svg>` element alone: its ids unique on the page, its colours those of the light or dark page."""
    from .style import PAGE_COLOURS

    element = svg[svg.index("<svg") :]
    for sign in ('\\bid="', 'href="#', r"url\(#"):
        element = re.sub(sign, lambda found: f"{found[0]}{prefix}", element)
    return Markup(re.sub("#[0-9a-f]{6}", lambda found: PAGE_COLOURS.get(found[0], found[0]), element))
