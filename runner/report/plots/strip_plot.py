"""The figure with a row for each arm: the parts of the training time."""

from textwrap import fill
from typing import Any

from matplotlib.figure import Figure
from matplotlib.patches import Patch

from ..data.arms import Comparison
from ..data.means import mean_parts
from .style import PAPER, PART_LOOKS, WIDTH, numbers, plain


def time_parts(comparison: Comparison) -> Figure:
    """Stacked mean parts of the training time of every arm."""
    labels = [plain(fill(arm.label, 30, max_lines=3, placeholder="…")) for arm in comparison.arms]
    figure = Figure(figsize=(WIDTH, 1.1 + 0.62 * len(labels)))
    axes = figure.subplots()
    axes.set_yticks(range(len(labels)), labels)
    axes.set_ylim(len(labels) - 0.4, -0.6)
    axes.grid(visible=False, axis="y")
    for row, arm in enumerate(comparison.arms):
        left = 0.0
        for part, mean in mean_parts(arm).items():
            # Differences of clocks come out a little below zero where nothing was exposed.
            value, (colour, hatch) = max(0.0, mean), PART_LOOKS[part]
            look: dict[str, Any] = {"color": colour, "hatch": hatch, "edgecolor": PAPER, "linewidth": 0.6}
            axes.barh(row, value, left=left, height=0.6, **look)
            left += value
    axes.set_xlabel("seconds of training")
    axes.xaxis.set_major_formatter(numbers())
    handles = [
        Patch(facecolor=colour, hatch=hatch, edgecolor=PAPER, label=part.replace("_", " "))
        for part, (colour, hatch) in PART_LOOKS.items()
    ]
    figure.legend(handles=handles, loc="outside lower left", ncols=5, frameon=False)
    return figure
