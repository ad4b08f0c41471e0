"""The figures of one comparison below page one: parts of the time and curves, with captions."""

import math
from collections.abc import Callable
from functools import partial
from textwrap import fill
from typing import TYPE_CHECKING, Any

from ..data.arms import Comparison
from ..data.means import mean_parts
from ..simulation_errors import where
from .pictures import Plot

if TYPE_CHECKING:
    from matplotlib.figure import Figure

PARTS = (
    "Training time split into parts: mean over ranks, then over an arm's finished runs."
    " Exposed: transfers that training stood still for. Waiting: for slower ranks."
)
MEDIANS = (
    "Line: median over runs at their first, second, … evaluation. Band: the middle half of them. ×: a run"
    " ended early. The axis begins where the arms are after a quarter of their evaluations."
)


def figures(comparison: Comparison, prefix: str) -> list[Plot]:
    """Those that `comparison` has something to show in, in reading order; `prefix` of their file names."""
    metric, corner = comparison.metric, where(comparison.world, comparison.size)
    shown: list[tuple[str, str, str, str, Callable[[Comparison], Figure]]] = []
    if any(mean_parts(arm) for arm in comparison.arms):
        shown.append(("parts", "Where the time went", PARTS, "runs", _parts))
    if any(math.isfinite(metric.of(row)) for run in comparison.runs for row in run.evaluations):
        for kind, over, x in (("time", "training time", "train_s"), ("samples", "samples", "samples")):
            title = f"{metric.title} against {over}"
            shown.append((f"{metric.key}_{kind}", title, MEDIANS, "evaluations", partial(_curves, x=x)))
    arms = ", ".join(arm.label for arm in comparison.arms)
    return [
        Plot(
            file=f"{prefix}{kind}",
            title=title,
            caption=caption,
            table=table,
            corner=corner,
            draw=partial(draw, comparison),
            alternative=f"{title} ({corner}): {arms}",
        )
        for kind, title, caption, table, draw in shown
    ]


def _parts(comparison: Comparison) -> "Figure":
    """Stacked mean parts of the training time of every arm."""
    from matplotlib.figure import Figure
    from matplotlib.patches import Patch

    from .style import PAPER, PART_LOOKS, WIDTH, numbers, plain

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


def _curves(comparison: Comparison, x: str) -> "Figure":
    from .curves import curves

    labels = {
        "train_s": "training time T_train in seconds",
        "samples": "training samples, all ranks together",
    }
    return curves(comparison, x, labels[x])
