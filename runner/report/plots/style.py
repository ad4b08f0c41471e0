"""Matplotlib set up so that equal input gives equal bytes and names are names."""

import io
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import matplotlib
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter

from ..words import printable

WIDTH = 6.2  # inches
PART_LOOKS = {  # colour and hatch, in the order of `load.PARTS`
    "compute": ("#0072B2", ""),
    "exposed": ("#D55E00", "///"),
    "waiting": ("#E69F00", "..."),
    "data": ("#56B4E9", "\\\\\\"),
    "step_other": ("#BBBBBB", ""),
}

INK, SOFT, EDGE, GRID, PAPER = "#1d2129", "#50555e", "#8a8f98", "#e7e9ed", "#ffffff"
GREY, BAND = "#8b919a", "#e3e6eb"  # of what may not be compared; of noise
# Of a figure on the page: these colours follow the reader's light or dark.
PAGE_COLOURS = {
    INK: "var(--ink)",
    SOFT: "var(--soft)",
    EDGE: "var(--edge)",
    GRID: "var(--line)",
    PAPER: "var(--paper)",
    BAND: "var(--band)",
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


def plain(label: str) -> str:
    """`label` as matplotlib must get it: a leading underscore would hide it (before 3.10)."""
    shown = printable(label)
    return f"\N{ZERO WIDTH SPACE}{shown}" if shown.startswith("_") else shown


@contextmanager
def drawing(salt: str) -> Iterator[None]:
    """Matplotlib's own defaults plus ours, whatever the user's settings file says. `salt` seeds the ids."""
    with matplotlib.rc_context(), warnings.catch_warnings():
        # A name in a script that the font lacks shows boxes: no reason to stop.
        warnings.filterwarnings("ignore", message=".*[Gg]lyph.*")
        matplotlib.rcdefaults()
        settings: dict[Any, Any] = {**SETTINGS, "svg.hashsalt": salt}
        matplotlib.rcParams.update(settings)
        yield


def drawn(salt: str, draw: Callable[[], Figure], *, corner: str) -> tuple[str, bytes]:
    """The figure that `draw` makes as SVG and as PDF, `corner` above it; equal figures give equal bytes."""
    with drawing(salt):
        figure, svg, pdf = draw(), io.StringIO(), io.BytesIO()
        # A title, so that the layout keeps room for it.
        figure.suptitle(plain(corner), x=0.995, ha="right", fontsize=7, color=SOFT, style="italic")
        # No date, no place and no version: equal figures are equal files.
        nothing = {"Date": None, "Creator": None, "Format": None, "Type": None}
        figure.savefig(svg, format="svg", facecolor="white", metadata=nothing)
        # Laid out already: the same places without the work.
        figure.set_layout_engine("none")
        nothing = {"CreationDate": None, "Creator": None, "Producer": None}
        figure.savefig(pdf, format="pdf", facecolor="white", metadata=nothing)
    lines = [line.rstrip() for line in svg.getvalue().splitlines()]
    return "\n".join(lines) + "\n", pdf.getvalue()


def numbers() -> FuncFormatter:
    """Axis labels without powers of ten."""
    return FuncFormatter(lambda value, _: f"{value:,.10g}")


def short(label: str, most: int) -> str:
    """The first `most` characters of `label`, the last of them an ellipsis if some are missing."""
    return label if len(label) <= most else f"{label[: most - 1]}…"
