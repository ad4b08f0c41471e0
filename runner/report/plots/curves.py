"""Curves of arms over samples or time, medians and bands; lines of arms over rates or sizes."""

import math
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, NullLocator

from .. import words
from ..data.arms import Arm, Comparison
from . import arm_style
from .style import SOFT, WIDTH, numbers, plain, short


def curves(comparison: Comparison, x: str, label: str) -> Figure:
    """The metric over the field `x` of evaluations, called `label`; targets are dotted lines.

    The legend says of an arm whose runs have nothing in the field `x` that there is nothing to show.
    """
    labels = [_legend_label(arm, x) for arm in comparison.arms]
    columns = 2 if max(map(len, labels)) <= 32 else 1
    figure = Figure(figsize=(WIDTH, 3.2 + 0.22 * -(-len(labels) // columns)))
    axes = figure.subplots()
    for arm, text in zip(comparison.arms, labels, strict=True):
        _curve(axes, arm, x, text)
    _mark_targets(axes, comparison)
    axes.set_ylabel(comparison.metric.name)
    axes.set_xlabel(label)
    axes.set_xlim(left=0)
    axes.xaxis.set_major_formatter(numbers())
    axes.xaxis.set_major_locator(MaxNLocator(8))
    lowest = _lowest(comparison)
    if lowest is not None and lowest < axes.get_ylim()[1]:
        axes.set_ylim(bottom=lowest)
    figure.legend(loc="outside lower left", ncols=columns, frameon=False, handlelength=3, fontsize=8.5)
    return figure


def _legend_label(arm: Arm, x: str) -> str:
    note = "" if any(run.points(x) for run in arm.runs) else ", nothing to show"
    return plain(f"{short(arm.label, 48)} ({words.count(len(arm.runs), 'run')}{note})")


def _mark_targets(axes: Axes, comparison: Comparison) -> None:
    key = comparison.metric.key
    for target in sorted({run.target for run in comparison.runs if run.target and run.metric == key}):
        axes.axhline(target, color=SOFT, linewidth=0.9, linestyle=(0, (2, 2)), zorder=1)
        at: dict[str, Any] = {"xycoords": ("axes fraction", "data"), "textcoords": "offset points"}
        axes.annotate(f"target {target:g}", (0, target), xytext=(3, 3), fontsize=8.5, **at)


def _curve(axes: Axes, arm: Arm, x: str, label: str) -> None:
    """The median of the runs of `arm`, the band of their middle half, and where runs ended early."""
    colour = arm_style.colour(arm.index)
    runs = [(run, points) for run in arm.runs if (points := run.points(x))]
    band = quartiles([points for _, points in runs])
    places, low, middle, high = zip(*band, strict=True) if band else ((), (), (), ())
    axes.fill_between(places, low, high, color=colour, alpha=0.18, linewidth=0)
    axes.plot(places, middle, label=label, markersize=4.5, linewidth=2, **arm_style.line(arm.index))
    early = [points for run, points in runs if run.state not in ("finished", "running")]
    judged = [[point for point in points if not math.isnan(point[1])] for points in early]
    if ends := [points[-1] for points in judged if points]:
        cross: dict[str, Any] = {"marker": "x", "markersize": 8, "markeredgewidth": 2, "linestyle": ""}
        axes.plot(*zip(*ends, strict=True), color=colour, **cross)


def _lowest(comparison: Comparison) -> float | None:
    """The lowest value of any run after a quarter of its evaluations: below it lies only the start."""
    late = [
        points[len(points) // 4 :] for run in comparison.runs if len(points := run.points("samples")) >= 8
    ]
    values = [value for points in late for _, value in points if not math.isnan(value)]
    return min(values, default=None)


def quartiles(runs: Sequence[Sequence[tuple[float, float]]]) -> list[tuple[float, float, float, float]]:
    """Median place, and lower quartile, median and upper quartile of the values, point by point.

    The k-th point of every run that has one with a value, as long as that is half of the runs or more.
    """
    band = []
    for place in range(max(map(len, runs), default=0)):
        points = [run[place] for run in runs if place < len(run) and not math.isnan(run[place][1])]
        if not points or 2 * len(points) < len(runs):
            break
        low, middle, high = np.quantile([value for _, value in points], (0.25, 0.5, 0.75))
        band.append((statistics.median(at for at, _ in points), float(low), float(middle), float(high)))
    return band


def arm_lines(
    lines: Mapping[tuple[str, int], Mapping[float, tuple[float, float, float]]],
    places: Sequence[float],
    *,
    xlabel: str,
    ylabel: str,
) -> tuple[Figure, Axes]:
    """A line for each arm over `places` on a logarithmic axis; the arm by its label and look.

    A point of a line: its value, and the ends of its interval.
    """
    figure = Figure(figsize=(WIDTH, 4.4))
    axes = figure.subplots()
    for (label, index), line in lines.items():
        xs = sorted(line)
        ends = [[line[x][0] - line[x][1] for x in xs], [line[x][2] - line[x][0] for x in xs]]
        axes.errorbar(
            xs,
            [line[x][0] for x in xs],
            yerr=ends if any(map(any, ends)) else None,
            markersize=5,
            linewidth=1.8,
            elinewidth=0.8,
            capsize=2,
            label=plain(short(label, 40) + ("" if line else " (nothing to show)")),
            **arm_style.line(index),
        )
    axes.set_xscale("log")
    axes.set_xticks(list(places))
    axes.xaxis.set_major_formatter(numbers())
    axes.xaxis.set_minor_locator(NullLocator())
    axes.set_xlabel(xlabel)
    axes.set_ylabel(plain(ylabel))
    figure.legend(loc="outside lower left", ncols=3, frameon=False, handlelength=3.5)
    return figure, axes
