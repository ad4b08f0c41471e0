"""Figures with a row for each arm: the parts of the training time."""

from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from ..data.arms import Comparison
from ..data.means import mean_parts
from .style import PAPER, PART_LOOKS, WIDTH, numbers, plain, wrapped


def strips(labels: Sequence[str], extra: float = 0.0) -> tuple[Figure, Axes]:
    """A figure with a row for each of `labels`, the first on top, and `extra` inches below them."""
    figure = Figure(figsize=(WIDTH, 0.75 + 0.62 * len(labels) + extra))
    axes = figure.subplots()
    axes.set_yticks(range(len(labels)), [plain(wrapped(label)) for label in labels])
    axes.set_ylim(len(labels) - 0.4, -0.6)
    axes.grid(visible=False, axis="y")
    return figure, axes


def time_parts(comparison: Comparison) -> Figure:
    """Stacked mean parts of the training time of every arm."""
    figure, axes = strips([arm.label for arm in comparison.arms], extra=0.35)
    for row, arm in enumerate(comparison.arms):
        left = 0.0
        for part, mean in mean_parts(arm).items():
            # Differences of clocks come out a little below zero where nothing was exposed.
            value, (fill, hatch) = max(0.0, mean), PART_LOOKS[part]
            axes.barh(
                row,
                value,
                left=left,
                height=0.6,
                color=fill,
                hatch=hatch,
                edgecolor=PAPER,
                linewidth=0.6,
            )
            left += value
    axes.set_xlabel("seconds of training")
    axes.xaxis.set_major_formatter(numbers())
    handles = [
        Patch(facecolor=fill, hatch=hatch, edgecolor=PAPER, label=part.replace("_", " "))
        for part, (fill, hatch) in PART_LOOKS.items()
    ]
    figure.legend(handles=handles, loc="outside lower left", ncols=5, frameon=False)
    return figure
