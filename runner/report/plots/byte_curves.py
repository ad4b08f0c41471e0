"""How well models do over the bytes sent between nodes so far: what a strategy learns for its traffic."""

from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter

from .. import words
from ..data.arms import Comparison
from ..data.load import Run
from .curves import Point, curve, mark_targets, panelled

WIDE = 20  # times: from there on the scale is logarithmic


def byte_curves(comparison: Comparison) -> Figure:
    """A curve for each run; the scale is logarithmic where arms end more than `WIDE` times apart."""
    figure, panels = panelled(comparison, "payload bytes between nodes so far, all ranks together", so_far)
    ends = [points[-1].x for run in comparison.runs if (points := so_far(run))]
    for axes, arms in panels:
        for arm in arms:
            curve(axes, arm, so_far, many=comparison.many)
        mark_targets(axes, comparison)
        axes.set_ylabel(comparison.metric.name)
        if max(ends) > WIDE * min(ends):
            axes.set_xscale("log")
            axes.xaxis.set_minor_formatter(FuncFormatter(lambda value, _: ""))
        else:
            axes.set_xlim(left=0)
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: words.size(value)))
    return figure


def so_far(run: Run) -> list[Point]:
    """The metric over bytes between nodes, from the first evaluation before which there were some."""
    return [
        Point(row["samples"], sent, run.judged_by.of(row))
        for row in run.evaluations
        if (sent := row.get("payload_bytes_inter"))
    ]
