"""Figures with a row for each arm: time to target, parts of the training time."""

from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from ..data.arms import Comparison
from ..data.means import mean_parts, target_mean
from .arm_style import colour, marker
from .style import PART_LOOKS, WIDTH, numbers, plain, wrapped


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
