"""The final metric against the bytes sent between nodes: a mark for each run, the median of an arm strong.

For records that count bytes of a whole run alone, not up to each evaluation: there is no curve to draw.
"""

import math
import statistics
from typing import Any

from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator

from . import words
from .arms import Comparison
from .curves import Point, mark_targets, panelled
from .load import Run
from .look import look

WIDE = 20  # times: from there on the scale is logarithmic


def final_bytes(comparison: Comparison) -> Figure:
    """The final metric of every finished run over its payload between nodes."""
    figure, panels = panelled(comparison, "payload bytes between nodes per run, all ranks together", by_bytes)
    found = [point.x for run in comparison.runs for point in by_bytes(run)]
    for axes, arms in panels:
        for arm in arms:
            style, points = look(arm.index), [point for run in arm.runs for point in by_bytes(run)]
            xs, ys = [point.x for point in points], [point.y for point in points]
            faint: dict[str, Any] = {"alpha": 0.4} if len(points) > 1 else {}
            axes.plot(xs, ys, style.marker, color=style.colour, markersize=6.5, **faint)
            if len(points) > 1:
                axes.plot(
                    statistics.median(xs),
                    statistics.median(ys),
                    style.marker,
                    color=style.colour,
                    markersize=9,
                    markeredgecolor="white",
                    zorder=4,
                )
        mark_targets(axes, comparison)
        axes.set_ylabel(f"final {comparison.metric.name}")
        if max(found) > WIDE * min(found):
            axes.set_xscale("log")
            axes.xaxis.set_minor_formatter(FuncFormatter(lambda value, _: ""))
        else:
            axes.set_xlim(0, 1.08 * max(found))
            axes.xaxis.set_major_locator(MaxNLocator(5))
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: words.size(value)))
    return figure


def by_bytes(run: Run) -> list[Point]:
    """The one point of a finished run that sent something between nodes and ended with a metric."""
    payload, final = run.payload_bytes("inter"), run.final
    if run.state != "finished" or not payload or final is None or not math.isfinite(final):
        return []
    return [Point(run.samples or 0.0, payload, final)]
