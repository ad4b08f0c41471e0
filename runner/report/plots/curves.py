"""The figures of one comparison below page one, parts of the time and curves; lines of arms over places."""

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from textwrap import fill
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from matplotlib.ticker import LogLocator, MaxNLocator, NullLocator

from .. import words
from ..data.arms import Arm, Comparison, computed_on
from ..data.means import mean_parts
from . import style
from .pictures import Plot
from .style import PAPER, SOFT, WIDTH, numbers, plain

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
    metric, device = comparison.metric, computed_on(comparison.runs)
    corner = words.world(comparison.world, comparison.size, device)
    shown: list[tuple[str, str, str, str, Callable[[], Figure]]] = []
    if any(mean_parts(arm) for arm in comparison.arms):
        shown.append(("parts", "Where the time went", PARTS, "runs", partial(parts, comparison)))
    if any(math.isfinite(metric.of(row)) for run in comparison.runs for row in run.evaluations):
        for kind, over, x, label in (
            ("time", "training time", "train_s", "training time T_train in seconds"),
            ("samples", "samples", "samples", "training samples, all ranks together"),
        ):
            file, title = f"{metric.key}_{kind}", f"{metric.title} against {over}"
            shown.append((file, title, MEDIANS, "evaluations", partial(curves, comparison, x, label)))
    arms = ", ".join(arm.label for arm in comparison.arms)
    return [
        Plot(
            file=f"{prefix}{file}",
            title=title,
            caption=caption,
            table=table,
            corner=corner,
            draw=(draw,),
            alternative=f"{title} ({corner}): {arms}",
        )
        for file, title, caption, table, draw in shown
    ]


def parts(comparison: Comparison) -> Figure:
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
            value, (colour, hatch) = max(0.0, mean), style.PARTS[part]
            look: dict[str, Any] = {"color": colour, "hatch": hatch, "edgecolor": PAPER, "linewidth": 0.6}
            axes.barh(row, value, left=left, height=0.6, **look)
            left += value
    axes.set_xlabel("seconds of training")
    axes.xaxis.set_major_formatter(numbers())
    handles = [
        Patch(facecolor=colour, hatch=hatch, edgecolor=PAPER, label=part.replace("_", " "))
        for part, (colour, hatch) in style.PARTS.items()
    ]
    figure.legend(handles=handles, loc="outside lower left", ncols=5, frameon=False)
    return figure


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
    key = comparison.metric.key
    for target in sorted({run.target for run in comparison.runs if run.target and run.metric == key}):
        axes.axhline(target, color=SOFT, linewidth=0.9, linestyle=(0, (2, 2)), zorder=1)
        at: dict[str, Any] = {"xycoords": ("axes fraction", "data"), "textcoords": "offset points"}
        axes.annotate(f"target {target:g}", (0, target), xytext=(3, 3), fontsize=8.5, **at)
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
    return f"{plain(arm.label, 48)} ({words.count(len(arm.runs), 'run')}{note})"


def _curve(axes: Axes, arm: Arm, x: str, label: str) -> None:
    """The median of the runs of `arm`, the band of their middle half, and where runs ended early."""
    colour = style.colour(arm.index)
    runs = [(run, points) for run in arm.runs if (points := run.points(x))]
    band = quartiles([points for _, points in runs])
    places, low, middle, high = zip(*band, strict=True) if band else ((), (), (), ())
    axes.fill_between(places, low, high, color=colour, alpha=0.18, linewidth=0)
    axes.plot(places, middle, label=label, markersize=4.5, linewidth=2, **style.line(arm.index))
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
    lines: Mapping[str, Mapping[float, Sequence[float]]],
    comparisons: Mapping[float, Comparison],
    *,
    xlabel: str,
    ylabel: str,
    log_y: bool = False,
) -> Figure:
    """A line for each arm over places on a logarithmic axis; `comparisons`: by place.

    `lines`: by label of an arm and place its value and the ends of its interval, or the value alone.
    `log_y`: of the values; else a dotted line marks 1.
    """
    looks = {arm.label: arm.index for comparison in comparisons.values() for arm in comparison.arms}
    figure = Figure(figsize=(WIDTH, 4.4))
    axes = figure.subplots()
    for label, line in lines.items():
        xs = sorted(line)
        values = [line[x][0] for x in xs]
        ends = [[abs(line[x][end] - line[x][0]) for x in xs if len(line[x]) > 1] for end in (1, 2)]
        look: dict[str, Any] = {"markersize": 5, "linewidth": 1.8, "elinewidth": 0.8, "capsize": 2}
        name = plain(label, 40) + ("" if line else " (nothing to show)")
        bars = ends if any(ends) else None
        axes.errorbar(xs, values, yerr=bars, label=name, **look, **style.line(looks[label]))
    axes.set_xscale("log")
    axes.set_xticks(list(comparisons))
    axes.xaxis.set_major_formatter(numbers())
    axes.xaxis.set_minor_locator(NullLocator())
    axes.set_xlabel(xlabel)
    axes.set_ylabel(plain(ylabel))
    if log_y:
        axes.set_yscale("log")
        axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 3, 5)))
        axes.yaxis.set_major_formatter(numbers())
        axes.yaxis.set_minor_locator(NullLocator())
    else:
        axes.axhline(1.0, color=SOFT, linewidth=1.1, linestyle=(0, (1.5, 2)), zorder=1)
    figure.legend(loc="outside lower left", ncols=3, frameon=False, handlelength=3.5)
    return figure
