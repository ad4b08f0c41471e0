"""Accuracy curves: every run thin, the median of an arm bold, legends below their own panel."""

import math
import statistics
from collections.abc import Callable, Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from . import words
from .arms import Arm, Comparison
from .look import Look, look
from .style import WIDTH, numbers, plain, short

# More curves than this in one panel cannot be told apart: the rest goes to the next panel, same axes.
ARMS_PER_PANEL = 7


def by_time(row: dict[str, Any]) -> float:
    """Place on the x axis: T_train of an evaluation, seconds."""
    return row["train_s"]


def by_samples(row: dict[str, Any]) -> float:
    """Place on the x axis: training samples up to an evaluation, all ranks together."""
    return row["samples"]


def accuracy(row: dict[str, Any]) -> float:
    """Place on the y axis; NaN where there is none."""
    value = row.get("accuracy")
    return float(value) if isinstance(value, int | float) and math.isfinite(value) else math.nan


def curves(comparison: Comparison, place: Callable[[dict[str, Any]], float], label: str) -> Figure:
    """Accuracy over `place`, at most ARMS_PER_PANEL arms a panel; targets are dotted lines."""
    panels = [
        comparison.arms[start : start + ARMS_PER_PANEL]
        for start in range(0, len(comparison.arms), ARMS_PER_PANEL)
    ]
    legend_height = 0.26 * sum(_legend_rows(panel) for panel in panels[:1]) + 0.1
    figure = Figure(figsize=(WIDTH, 3.2 * len(panels) + legend_height * len(panels)))
    all_axes = figure.subplots(len(panels), 1, sharex=True, sharey=True, squeeze=False)[:, 0]
    for axes, panel in zip(all_axes, panels, strict=True):
        for arm in panel:
            _curve(axes, arm, place)
        for target in comparison.targets:
            axes.axhline(target, color="#444444", linewidth=0.9, linestyle=(0, (2, 2)), zorder=1)
            axes.annotate(
                f"target {target:g}",
                (0, target),
                xycoords=("axes fraction", "data"),
                xytext=(3, 3),
                textcoords="offset points",
                fontsize=8.5,
            )
        axes.set_ylabel("accuracy")
        axes.set_xlim(left=0)
        axes.xaxis.set_major_formatter(numbers())
        axes.xaxis.set_major_locator(MaxNLocator(8))
        # Below its own panel, so that no legend covers a curve.
        axes.legend(
            handles=[_handle(arm) for arm in panel],
            loc="upper left",
            bbox_to_anchor=(0, -0.17),
            ncols=_columns(panel),
            frameon=False,
            borderaxespad=0,
            handlelength=4,
        )
        axes.tick_params(labelbottom=True)
        axes.set_xlabel(label)
    return figure


def _columns(arms: Sequence[Arm]) -> int:
    """As many as the width of the figure has room for."""
    longest = max(len(_legend_label(arm)) for arm in arms)
    return 3 if longest <= 13 else 2 if longest <= 21 else 1


def _legend_rows(arms: Sequence[Arm]) -> int:
    return -(-len(arms) // _columns(arms))


def _legend_label(arm: Arm) -> str:
    note = "" if any(run.evaluations for run in arm.runs) else ", nothing to show"
    return plain(f"{short(arm.label, 80)} ({words.count(len(arm.runs), 'run')}{note})")


def _handle(arm: Arm) -> Line2D:
    style = look(arm.index)
    return Line2D(
        [],
        [],
        color=style.colour,
        linestyle=_line(style),
        marker=style.marker,
        markersize=5,
        linewidth=2,
        label=_legend_label(arm),
    )


def _line(style: Look) -> Any:
    return (0, style.dashes) if style.dashes else "-"


def _curve(axes: Axes, arm: Arm, place: Callable[[dict[str, Any]], float]) -> None:
    style = look(arm.index)
    line: dict[str, Any] = {"color": style.colour, "linestyle": _line(style)}
    median = _median(arm, place)
    for run in arm.runs:
        xs = [place(row) for row in run.evaluations]
        ys = [accuracy(row) for row in run.evaluations]
        if median or len(arm.runs) > 1:
            axes.plot(xs, ys, **line, linewidth=0.9, alpha=0.45)
        else:
            axes.plot(xs, ys, **line, linewidth=2, marker=style.marker, markersize=4.5)
        seen = [(x, y) for x, y in zip(xs, ys, strict=True) if not math.isnan(y)]
        if run.state not in ("finished", "running") and seen:
            axes.plot(
                *seen[-1], color=style.colour, marker="x", markersize=8, markeredgewidth=2, linestyle=""
            )
    if median:
        axes.plot(*zip(*median, strict=True), **line, linewidth=2, marker=style.marker, markersize=4.5)


def _median(arm: Arm, place: Callable[[dict[str, Any]], float]) -> list[tuple[float, float]]:
    """Median place and accuracy at each evaluation, over runs with equal sample marks; else nothing."""
    runs = [run.evaluations for run in arm.runs if run.state == "finished" and run.evaluations]
    if len(runs) < 2 or len({tuple(row["samples"] for row in rows) for rows in runs}) > 1:
        return []
    return [
        (
            statistics.median(place(row) for row in rows),
            statistics.median(accuracy(row) for row in rows),
        )
        for rows in zip(*runs, strict=True)
    ]
