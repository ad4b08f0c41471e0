"""The figure of arms under assumptions: each at its speed relative to the baseline."""

from typing import Any

from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from .. import words
from ..ranking import AS_CONFIGURED
from ..sensitivity import SizeTable
from .arm_style import look
from .lanes import lanes
from .style import Drawn, drawn, numbers, plain, short, where

TITLE = "Relative speed under assumptions"
CAPTION = (
    "Strong mark: as configured. Faint marks: under each assumption alone. The line spans them all. Dotted:"
    " the baseline, which is faster than all marks left of it."
)


def draw(table: SizeTable, world: str) -> Drawn:
    """The figure as files."""
    return drawn("sensitivity", lambda: dots(table), told=where(world, table.size))


def dots(table: SizeTable) -> Figure:
    """Speed relative to the baseline, a lane for each arm; the baseline itself is the dotted line."""
    figure, axes = lanes(list(table.arms), extra=0.35)
    axes.axvline(1, color="#444444", linewidth=0.9, linestyle=(0, (2, 2)), zorder=1)
    for lane, (arm, index) in enumerate(table.arms.items()):
        style = look(index)
        found = speeds(table, arm)
        if not found:
            axes.annotate(
                "nothing to show", (0.01, lane), xycoords=("axes fraction", "data"), va="center", fontsize=8.5
            )
            continue
        axes.plot([min(found.values()), max(found.values())], [lane, lane], color=style.colour, linewidth=1.6)
        for assumption, value in found.items():
            if assumption != AS_CONFIGURED:
                axes.plot(value, lane, style.marker, color=style.colour, markersize=6.5, alpha=0.35)
        if AS_CONFIGURED in found:
            axes.plot(
                found[AS_CONFIGURED],
                lane,
                style.marker,
                color=style.colour,
                markersize=9,
                markeredgecolor="white",
                zorder=4,
            )
    axes.margins(x=0.08)
    axes.set_xlabel(f"times as fast as {plain(short(table.baseline, 40))}")
    axes.xaxis.set_major_formatter(numbers())
    grey: dict[str, Any] = {"linestyle": "", "marker": "o", "color": "#50555e"}
    figure.legend(
        handles=[
            Line2D([], [], **grey, markersize=9, label="as configured"),
            Line2D([], [], **grey, markersize=6.5, alpha=0.35, label="under one assumption each"),
        ],
        loc="outside lower left",
        ncols=2,
        frameon=False,
    )
    return figure


def speeds(table: SizeTable, arm: str) -> dict[str, float]:
    """Relative speed of `arm` by assumption, where it has one."""
    found = {assumption: table.relative(arm, assumption) for assumption in table.assumptions}
    return {assumption: value for assumption, value in found.items() if value is not None}


def alternative(table: SizeTable, world: str) -> str:
    """The figure in words, for who cannot see it."""
    told = "; ".join(f"{arm}: {_range(table, arm)}" for arm in table.arms)
    return f"{TITLE} ({where(world, table.size)}), times as fast as {table.baseline}. {told}."


def _range(table: SizeTable, arm: str) -> str:
    found = speeds(table, arm)
    if not found:
        return "nothing to show"
    base = f"{words.ratio(found[AS_CONFIGURED])} as configured, " if AS_CONFIGURED in found else ""
    return f"{base}{words.ratio(min(found.values()))} to {words.ratio(max(found.values()))} over all"
