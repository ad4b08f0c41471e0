"""Figures of how far the ranks' models are apart, and of how old what they take in is."""

from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullFormatter

from .arms import Comparison
from .curves import Point, curve, panelled
from .epochs import spread, staleness
from .lanes import lanes, offsets
from .load import Run
from .look import look
from .style import numbers


def spread_curves(comparison: Comparison) -> Figure:
    """The spread at the end of each epoch over training samples, on a logarithmic scale."""
    figure, panels = panelled(comparison, "training samples, all ranks together", by_epoch)
    for axes, arms in panels:
        for arm in arms:
            curve(axes, arm, by_epoch, many=comparison.many)
        axes.set_yscale("log")
        axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axes.yaxis.set_major_formatter(numbers())
        axes.yaxis.set_minor_formatter(NullFormatter())
        axes.set_ylabel("distance from the mean")
        axes.set_xlim(left=0)
        axes.xaxis.set_major_formatter(numbers())
    return figure


def staleness_lanes(comparison: Comparison) -> Figure:
    """A mark per run at its mean staleness, with a line to the largest."""
    figure, axes = lanes([arm.label for arm in comparison.arms])
    for lane, arm in enumerate(comparison.arms):
        style = look(arm.index)
        found = [stale for run in arm.runs if (stale := staleness(run))]
        places = [lane + offset for offset in offsets(len(found))]
        means, most = [mean for mean, _ in found], [largest for _, largest in found]
        axes.hlines(places, means, most, color=style.colour, linewidth=2, alpha=0.35)
        axes.plot(means, places, style.marker, color=style.colour, markersize=6.5, linestyle="")
        if not found:
            axes.annotate(
                "none recorded", (0.01, lane), xycoords=("axes fraction", "data"), va="center", fontsize=8.5
            )
    axes.set_xlim(left=0)
    axes.margins(x=0.08)
    axes.set_xlabel("steps from the sending of a model to the use of the mean")
    axes.xaxis.set_major_formatter(numbers())
    return figure


def by_epoch(run: Run) -> list[Point]:
    """The spread at the end of each epoch that has one above zero."""
    found = [(row.get("samples"), spread(row)) for row in run.epochs]
    return [Point(samples, samples, value) for samples, value in found if samples is not None and value]
