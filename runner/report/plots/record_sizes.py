"""The figure of what readers gain over the size of a record."""

from collections.abc import Mapping

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import NullLocator

from .. import words
from ..reader_matrix import RecordSizes
from .arm_style import look
from .style import WIDTH, Drawn, drawn, numbers, plain, short, where

TITLE = "What readers gain over the size of a record"
CAPTION = (
    "Training's samples per second over the baseline's, whose rate is the dotted line, with intervals. A gain"
    " is less waiting for data, or less work of the ranks' own cores; readers.csv has the waiting (waited_s)."
)


def draw(found: RecordSizes) -> Drawn:
    """The figure as files."""
    return drawn("readers", lambda: gains(found), told=where(found.world, ""))


def gains(found: RecordSizes) -> Figure:
    """A line for each arm over all sizes of records."""
    figure = Figure(figsize=(WIDTH, 3.8))
    axes = figure.subplots()
    for arm, index in found.arms.items():
        ends = {size: (one.point, one.low, one.high) for size, one in found.gains(arm).items()}
        _with_ranges(axes, ends, index, plain(short(arm, 40)))
    axes.axhline(1.0, color="#444444", linewidth=1.1, linestyle=(0, (1.5, 2)), zorder=1)
    axes.set_xlabel("bytes of a record")
    axes.set_ylabel(plain(f"times as fast as {short(found.baseline, 30)}"))
    figure.legend(loc="outside lower left", ncols=3, frameon=False, handlelength=3.5)
    return figure


def alternative(found: RecordSizes) -> str:
    """The figure in words, for who cannot see it."""
    told = [
        f"{arm}: "
        + ", ".join(f"{words.interval(one)} at {words.size(size)}" for size, one in found.gains(arm).items())
        for arm in found.arms
    ]
    return f"{TITLE}, times as fast as {found.baseline} ({where(found.world, '')}). {'; '.join(told)}."


def _with_ranges(
    axes: Axes, ends: Mapping[float, tuple[float, float, float]], place: int, label: str
) -> None:
    """A line over x on a logarithmic axis: of each x the value and the ends of its interval or range.

    place: of the look.
    """
    style, sizes = look(place), sorted(ends)
    axes.errorbar(
        sizes,
        [ends[size][0] for size in sizes],
        yerr=[
            [ends[size][0] - ends[size][1] for size in sizes],
            [ends[size][2] - ends[size][0] for size in sizes],
        ],
        color=style.colour,
        linestyle=(0, style.dashes) if style.dashes else "-",
        marker=style.marker,
        markersize=5,
        linewidth=1.6,
        elinewidth=0.8,
        capsize=2,
        label=label,
    )
    axes.set_xscale("log")
    axes.set_xticks(sizes)
    axes.xaxis.set_major_formatter(numbers())
    axes.xaxis.set_minor_locator(NullLocator())
