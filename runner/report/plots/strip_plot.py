"""Figures with a row for each arm: time to target, parts of the training time, ranks."""

import statistics
from collections.abc import Iterable, Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from matplotlib.ticker import MaxNLocator, PercentFormatter

from ..data.arms import Arm, Comparison
from ..data.means import mean_parts, target_mean
from ..data.rank_times import shares, waited
from .arm_style import colour, marker
from .style import PART_LOOKS, WIDTH, numbers, plain, wrapped

NAMED = 8  # ranks of an arm whose marks can carry their numbers


def strips(labels: Sequence[str], extra: float = 0.0) -> tuple[Figure, Axes]:
    """A figure with a row for each of `labels`, the first on top, and `extra` inches below them."""
    figure = Figure(figsize=(WIDTH, 0.75 + 0.62 * len(labels) + extra))
    axes = figure.subplots()
    axes.set_yticks(range(len(labels)), [plain(wrapped(label)) for label in labels])
    axes.set_ylim(len(labels) - 0.4, -0.6)
    axes.grid(visible=False, axis="y")
    return figure, axes


def offsets(count: int) -> list[float]:
    """Offsets in a row, so that equal values do not hide each other."""
    return [0.0] if count == 1 else [0.5 * (k / (count - 1) - 0.5) for k in range(count)]


def target_strip(comparison: Comparison) -> Figure:
    """A mark per run at its scored time, a bar over its interval; a band at the right for who missed it."""
    figure, axes = strips([arm.label for arm in comparison.arms])
    stamps = [run.crossing.stamp_s for run in comparison.runs if run.crossing]
    right = max(stamps, default=0.0) or 1.0
    nowhere = right * 1.13
    axes.set_xlim(0, right * 1.22)
    axes.axvspan(right * 1.05, right * 1.22, color="#f1f2f5", linewidth=0)
    axes.annotate(
        "not reached",
        (nowhere, 1),
        xycoords=("data", "axes fraction"),
        ha="center",
        va="bottom",
        fontsize=8.5,
    )
    for row, arm in enumerate(comparison.arms):
        fill = colour(arm.index)
        places = [row + offset for offset in offsets(len(arm.counted))]
        crossings = [(run.crossing, y) for run, y in zip(arm.counted, places, strict=True)]
        hits = [(crossing, y) for crossing, y in crossings if crossing]
        missed = [y for crossing, y in crossings if not crossing]
        axes.hlines(
            [y for _, y in hits],
            [crossing.after_s for crossing, _ in hits],
            [crossing.stamp_s for crossing, _ in hits],
            color=fill,
            linewidth=3,
            alpha=0.3,
        )
        if hits:
            scored = [crossing.scored_s for crossing, _ in hits]
            shape, heights = marker(arm.index), [y for _, y in hits]
            axes.plot(scored, heights, shape, color=fill, markersize=6.5, markeredgewidth=1.0)
        if missed:
            axes.plot([nowhere] * len(missed), missed, "x", color=fill, markersize=7, markeredgewidth=1.8)
        mean = target_mean(arm)
        if mean is not None:
            axes.plot([mean, mean], [row - 0.36, row + 0.36], color="#1d2129", linewidth=1.6)
    axes.set_xlabel("T_train to target, seconds")
    axes.xaxis.set_major_formatter(numbers())
    return figure


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
                edgecolor="white",
                linewidth=0.6,
            )
            left += value
    axes.set_xlabel("seconds of training")
    axes.xaxis.set_major_formatter(numbers())
    handles = [
        Patch(facecolor=fill, hatch=hatch, edgecolor="white", label=part.replace("_", " "))
        for part, (fill, hatch) in PART_LOOKS.items()
    ]
    figure.legend(handles=handles, loc="outside lower left", ncols=5, frameon=False)
    return figure


def ranks(comparison: Comparison) -> Figure:
    """A mark per rank and arm: at its share of the samples, and at the share of training that it waited."""
    labels = [plain(wrapped(arm.label)) for arm in comparison.arms]
    figure = Figure(figsize=(WIDTH, 0.95 + 0.62 * len(labels)))
    samples, waiting = figure.subplots(1, 2, sharey=True)
    samples.set_yticks(range(len(labels)), labels)
    samples.set_ylim(len(labels) - 0.4, -0.6)
    for row, arm in enumerate(comparison.arms):
        _rank_marks(samples, row, arm, _mean_by_rank([shares(run) for run in arm.complete]))
        _rank_marks(waiting, row, arm, _mean_by_rank([waited(run) for run in arm.complete]))
    samples.axvline(1, color="#444444", linewidth=0.9, linestyle=(0, (2, 2)), zorder=1)
    samples.set_xlabel("samples of a rank,\ntimes an equal share")
    samples.xaxis.set_major_formatter(numbers())
    waiting.set_xlim(left=0)
    waiting.set_xlabel("waiting for other ranks,\nshare of training time")
    waiting.xaxis.set_major_formatter(PercentFormatter(1, decimals=None))
    for axes in (samples, waiting):
        axes.xaxis.set_major_locator(MaxNLocator(4))
        axes.grid(visible=False, axis="y")
        axes.margins(x=0.12)
    return figure


def _rank_marks(axes: Axes, row: int, arm: Arm, values: Sequence[float]) -> None:
    if not values:
        place: Any = {"xycoords": ("axes fraction", "data"), "va": "center", "fontsize": 8.5}
        axes.annotate("nothing recorded", (0.02, row), **place)
        return
    places = [row + offset for offset in offsets(len(values))]
    axes.plot(values, places, marker(arm.index), color=colour(arm.index), markersize=6, linestyle="")
    for rank, at in enumerate(zip(values, places, strict=True)):
        if len(values) <= NAMED:
            axes.annotate(str(rank), at, xytext=(6, 0), textcoords="offset points", va="center", fontsize=7)


def _mean_by_rank(runs: Iterable[Sequence[float]]) -> list[float]:
    """The mean over runs for each rank; nothing if they have different numbers of ranks."""
    recorded = [run for run in runs if run]
    if len({len(run) for run in recorded}) != 1:
        return []
    return [statistics.fmean(values) for values in zip(*recorded, strict=True)]
