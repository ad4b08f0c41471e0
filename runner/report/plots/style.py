"""How arms and parts of the time look, the same in every figure and table; colours and labels of figures."""

from typing import Any

from markupsafe import Markup
from matplotlib.ticker import FuncFormatter

from ..words import printable

WIDTH = 6.2  # inches
INK, SOFT, EDGE, GRID, PAPER = "#1d2129", "#50555e", "#8a8f98", "#e7e9ed", "#ffffff"
GREY, BAND, TOLERANCE = "#8b919a", "#e3e6eb", "#d8eedd"  # not comparable; noise; tolerated loss
# Each stands out from white and from the dark page (contrast 3:1 and more), and from the 15 others.
COLOURS = (
    *("#0072B2", "#D55E00", "#008F68", "#A880C8", "#C01080", "#989800", "#9008F8", "#886060"),
    *("#1090F8", "#F84890", "#C81818", "#809890", "#F800F8", "#4050F8", "#8858B8", "#C800D0"),
)
# Strokes and gaps in line widths; empty: solid.
DASHES = ((), (5, 1.6), (1.2, 1.2), (6, 1.6, 1.2, 1.6))
MARKERS = "os^DvPX<>"  # as matplotlib names them
PARTS = {  # colour and hatch, in the order of `load.PARTS`
    "compute": ("#0072B2", ""),
    "exposed": ("#D55E00", "///"),
    "waiting": ("#E69F00", "..."),
    "data": ("#56B4E9", "\\\\\\"),
    "step_other": ("#BBBBBB", ""),
}


def colour(index: int) -> str:
    """The colour of arm number `index`; 16 colours, 4 lines and 9 markers never meet twice below 144 arms."""
    return COLOURS[index % len(COLOURS)]


def marker(index: int) -> str:
    """Its marker as matplotlib takes it."""
    return MARKERS[index % len(MARKERS)]


def line(index: int) -> dict[str, Any]:
    """Colour, line and marker of its line as matplotlib's `plot` takes them."""
    dashes = DASHES[index % len(DASHES)]
    return {"color": colour(index), "linestyle": (0, dashes) if dashes else "-", "marker": marker(index)}


def swatch(index: int) -> Markup:
    """Colour and line as a small picture for a table."""
    dashes = " ".join(f"{2.5 * length:g}" for length in DASHES[index % len(DASHES)])
    return Markup(
        '<svg class="swatch" viewBox="0 0 40 14" aria-hidden="true">'
        '<path d="M2 7h36" stroke="{}" stroke-width="4" stroke-dasharray="{}"/></svg>'
    ).format(colour(index), dashes)


def plain(label: str, most: int | None = None) -> str:
    """`label` for matplotlib, an ellipsis for what is longer than `most` characters.

    A leading underscore would hide it (before 3.10).
    """
    shown = printable(label if most is None or len(label) <= most else f"{label[: most - 1]}…")
    return f"\N{ZERO WIDTH SPACE}{shown}" if shown.startswith("_") else shown


def numbers() -> FuncFormatter:
    """Axis labels without powers of ten."""
    return FuncFormatter(lambda value, _: f"{value:,.10g}")
