"""Curves over samples or time: every run thin and the median of an arm bold, or medians and bands."""

import math
import statistics
from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from .. import words
from ..data.arms import Arm, Comparison
from ..data.load import Point
from .arm_style import Look, look
from .style import WIDTH, numbers, plain, short

# More curves than this in one panel cannot be told apart: the rest goes to the next panel, same axes.
ARMS_PER_PANEL = 7


def curves(comparison: Comparison, x: str, label: str) -> Figure:
    """The metric over the field `x` of evaluations, called `label`; targets are dotted lines."""
    figure, panels = panelled(comparison, label, x)
    for axes, arms in panels:
        for arm in arms:
            curve(axes, arm, x, many=comparison.many)
        mark_targets(axes, comparison)
        axes.set_ylabel(comparison.metric.name)
        axes.set_xlim(left=0)
        axes.xaxis.set_major_formatter(numbers())
        axes.xaxis.set_major_locator(MaxNLocator(8))
    return figure


def mark_targets(axes: Axes, comparison: Comparison) -> None:
    """A dotted line at each target of the metric that is drawn."""
    key = comparison.metric.key
    for target in sorted({run.target for run in comparison.runs if run.target and run.metric == key}):
        axes.axhline(target, color="#444444", linewidth=0.9, linestyle=(0, (2, 2)), zorder=1)
        axes.annotate(
            f"target {target:g}",
            (0, target),
            xycoords=("axes fraction", "data"),
            xytext=(3, 3),
            textcoords="offset points",
            fontsize=8.5,
        )


def panelled(comparison: Comparison, label: str, x: str) -> tuple[Figure, list[tuple[Axes, list[Arm]]]]:
    """An empty figure in panels of at most ARMS_PER_PANEL arms, `label` and a legend below each.

    The legend says of an arm whose runs have nothing in the field `x` that there is nothing to show.
    """
    groups = [
        comparison.arms[start : start + ARMS_PER_PANEL]
        for start in range(0, len(comparison.arms), ARMS_PER_PANEL)
    ]
    labels = {arm.label: _legend_label(arm, x) for arm in comparison.arms}
    legend_height = 0.26 * _legend_rows(groups[0], labels) + 0.1
    figure = Figure(figsize=(WIDTH, (3.2 + legend_height) * len(groups)))
    all_axes = figure.subplots(len(groups), 1, sharex=True, sharey=True, squeeze=False)[:, 0]
    panels: list[tuple[Axes, list[Arm]]] = list(zip(all_axes, groups, strict=True))
    for axes, arms in panels:
        # Below its own panel, so that no legend covers a curve.
        axes.legend(
            handles=[_handle(arm, labels[arm.label]) for arm in arms],
            loc="upper left",
            bbox_to_anchor=(0, -0.17),
            ncols=_columns(arms, labels),
            frameon=False,
            borderaxespad=0,
            handlelength=4,
        )
        axes.tick_params(labelbottom=True)
        axes.set_xlabel(label)
    return figure, panels


def _columns(arms: Sequence[Arm], labels: dict[str, str]) -> int:
    """As many as the width of the figure has room for."""
    longest = max(len(labels[arm.label]) for arm in arms)
    return 3 if longest <= 13 else 2 if longest <= 21 else 1


def _legend_rows(arms: Sequence[Arm], labels: dict[str, str]) -> int:
    return -(-len(arms) // _columns(arms, labels))


def _legend_label(arm: Arm, x: str) -> str:
    note = "" if any(run.points(x) for run in arm.runs) else ", nothing to show"
    return plain(f"{short(arm.label, 48)} ({words.count(len(arm.runs), 'run')}{note})")


def _handle(arm: Arm, label: str) -> Line2D:
    style = look(arm.index)
    return Line2D(
        [],
        [],
        color=style.colour,
        linestyle=line_of(style),
        marker=style.marker,
        markersize=5,
        linewidth=2,
        label=label,
    )


def line_of(style: Look) -> Any:
    """The line of a look as matplotlib takes it."""
    return (0, style.dashes) if style.dashes else "-"


def curve(axes: Axes, arm: Arm, x: str, *, many: bool) -> None:
    """The runs of `arm` and their median; with `many` the median and the band of the middle half instead."""
    style = look(arm.index)
    line: dict[str, Any] = {"color": style.colour, "linestyle": line_of(style)}
    bold: dict[str, Any] = {**line, "linewidth": 2, "marker": style.marker, "markersize": 4.5}
    runs = [(run, points) for run in arm.runs if (points := run.points(x))]
    if many:
        band = quartiles([points for _, points in runs])
        if band:
            places, low, middle, high = zip(*band, strict=True)
            axes.fill_between(places, low, high, color=style.colour, alpha=0.18, linewidth=0)
            axes.plot(places, middle, **bold)
    else:
        thin = {**line, "linewidth": 0.9, "alpha": 0.45} if len(arm.runs) > 1 else bold
        for _, points in runs:
            axes.plot([point.x for point in points], [point.y for point in points], **thin)
    median = [] if many else _median([points for run, points in runs if run.state == "finished"])
    if median:
        axes.plot(*zip(*median, strict=True), **bold)
    ends = [_last(points) for run, points in runs if run.state not in ("finished", "running")]
    if ended := [point for point in ends if point]:
        axes.plot(
            [point.x for point in ended],
            [point.y for point in ended],
            color=style.colour,
            marker="x",
            markersize=8,
            markeredgewidth=2,
            linestyle="",
        )


def _last(points: Sequence[Point]) -> Point | None:
    """The last point that has a value."""
    return next((point for point in reversed(points) if not math.isnan(point.y)), None)


def _median(runs: Sequence[list[Point]]) -> list[tuple[float, float]]:
    """Median place and value at each point, over two or more runs with equal sample marks; else nothing."""
    if len(runs) < 2 or len({tuple(point.mark for point in points) for points in runs}) > 1:
        return []
    return [
        (statistics.median(point.x for point in points), statistics.median(point.y for point in points))
        for points in zip(*runs, strict=True)
    ]


def quartiles(runs: Sequence[list[Point]]) -> list[tuple[float, float, float, float]]:
    """Median place, and lower quartile, median and upper quartile of the values, point by point.

    The k-th point of every run that has one with a value, as long as that is half of the runs or more.
    """
    band = []
    for place in range(max(map(len, runs), default=0)):
        points = [run[place] for run in runs if place < len(run) and not math.isnan(run[place].y)]
        if not points or 2 * len(points) < len(runs):
            break
        low, middle, high = np.quantile([point.y for point in points], (0.25, 0.5, 0.75))
        band.append((statistics.median(p.x for p in points), float(low), float(middle), float(high)))
    return band
