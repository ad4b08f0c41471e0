"""The figure of time to target against the rate between nodes."""

from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import NullLocator

from .. import words
from ..bandwidth import Bandwidth
from .arm_style import look
from .style import WIDTH, Drawn, drawn, label_logarithmic, numbers, plain, short, where

TITLE = "Time to target against the rate between nodes"
CAPTION = (
    "Geometric means over runs, straight on two logarithmic axes between the rates that were run. Rings:"
    " where two lines cross. Dotted: the baseline without exposed transfers and waiting, which no link can"
    " shorten."
)


def draw(found: Bandwidth) -> Drawn:
    """The figure as files."""
    return drawn("bandwidth", lambda: rates(found), told=where(found.world, ""))


def rates(found: Bandwidth) -> Figure:
    """A line for each arm over all rates at which its runs reached the target."""
    figure = Figure(figsize=(WIDTH, 4.4))
    axes = figure.subplots()
    handles: list[Line2D] = []
    for arm, index in found.arms.items():
        style, line = look(index), sorted(found.lines[arm].items())
        drawn = {
            "color": style.colour,
            "linestyle": (0, style.dashes) if style.dashes else "-",
            "marker": style.marker,
            "markersize": 5,
            "linewidth": 1.8,
        }
        if line:
            axes.plot(*zip(*line, strict=True), **drawn)
        label = plain(short(arm, 40) + ("" if line else " (target not reached)"))
        handles.append(Line2D([], [], **drawn, label=label))
    if found.floor:
        dotted = {"color": "#444444", "linewidth": 1.1, "linestyle": (0, (1.5, 2))}
        axes.plot(*zip(*sorted(found.floor.items()), strict=True), **dotted, zorder=1)
        handles.append(Line2D([], [], **dotted, label=plain(f"{short(found.baseline, 20)}, computing alone")))
    for one in found.crossings:
        axes.plot(
            one.rate_gbit,
            one.seconds,
            "o",
            markersize=9,
            markerfacecolor="none",
            markeredgecolor="#1d2129",
            markeredgewidth=1.0,
            zorder=5,
        )
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xticks(found.rates)
    axes.xaxis.set_major_formatter(numbers())
    axes.xaxis.set_minor_locator(NullLocator())
    label_logarithmic(axes.yaxis)
    axes.set_xlabel("rate of a card between nodes in Gbit/s")
    axes.set_ylabel("time to target in seconds")
    figure.legend(handles=handles, loc="outside lower left", ncols=3, frameon=False, handlelength=3.5)
    return figure


def alternative(found: Bandwidth) -> str:
    """The figure in words, for who cannot see it."""
    told = [f"{arm}: {_line(found.lines[arm])}" for arm in found.arms]
    floor = [f"{found.baseline}, computing alone: {_line(found.floor)}"] if found.floor else []
    return f"{TITLE} ({where(found.world, '')}). {'; '.join([*told, *floor, *found.sentences])}."


def _line(line: dict[float, float]) -> str:
    if not line:
        return "target not reached"
    return ", ".join(f"{words.seconds(s)} at {rate:g} Gbit/s" for rate, s in sorted(line.items()))
