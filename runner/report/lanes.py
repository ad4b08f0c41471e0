"""Figures with one lane per arm: time to target, throughput, bytes, parts of the time."""

import math
import statistics
from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import FuncFormatter

from . import words
from .arms import Arm, Comparison
from .load import Run
from .look import look
from .means import target_mean
from .style import PART_COLOURS, PART_HATCHES, WIDTH, numbers, plain, wrapped
from .tables import LINKS, PARTS

LINK_WORDS = {"intra": "inside nodes", "inter": "between nodes"}


def lanes(labels: Sequence[str], extra: float = 0.0) -> tuple[Figure, Axes]:
    """A figure with a lane for each of `labels`, the first on top, and `extra` inches below them."""
    figure = Figure(figsize=(WIDTH, 0.75 + 0.62 * len(labels) + extra))
    axes = figure.subplots()
    axes.set_yticks(range(len(labels)), [plain(wrapped(label)) for label in labels])
    axes.set_ylim(len(labels) - 0.4, -0.6)
    axes.grid(visible=False, axis="y")
    return figure, axes


def _spread(count: int, height: float = 0.5) -> list[float]:
    """Offsets in a lane, so that equal values do not hide each other."""
    return [0.0] if count == 1 else [height * (k / (count - 1) - 0.5) for k in range(count)]


def target_strip(comparison: Comparison) -> Figure:
    """A mark per run at its scored time, a bar over its interval; a band at the right for who missed it."""
    figure, axes = lanes([arm.label for arm in comparison.arms])
    right = max((_reach(run) for run in comparison.runs), default=0.0) or 1.0
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
    for lane, arm in enumerate(comparison.arms):
        style = look(arm.index)
        for run, offset in zip(arm.counted, _spread(len(arm.counted)), strict=True):
            found, y = run.crossing, lane + offset
            if found is None:
                axes.plot(nowhere, y, "x", color=style.colour, markersize=7, markeredgewidth=1.8)
                continue
            axes.plot([found.after_s, found.stamp_s], [y, y], color=style.colour, linewidth=3, alpha=0.3)
            axes.plot(found.scored_s, y, style.marker, color=style.colour, markersize=6.5)
        mean = target_mean(arm)
        if mean is not None:
            axes.plot([mean, mean], [lane - 0.36, lane + 0.36], color="#1d2129", linewidth=1.6)
    axes.set_xlabel("T_train to target, seconds")
    axes.xaxis.set_major_formatter(numbers())
    return figure


def _reach(run: Run) -> float:
    return run.crossing.stamp_s if run.crossing else 0.0


def throughput(comparison: Comparison) -> Figure:
    """A mark per run at its samples per second."""
    figure, axes = lanes([arm.label for arm in comparison.arms])
    for lane, arm in enumerate(comparison.arms):
        style = look(arm.index)
        found = [(run, run.samples_per_s) for run in arm.runs if run.samples_per_s]
        for (run, value), offset in zip(found, _spread(len(found)), strict=True):
            marker = style.marker if run.state == "finished" else "x"
            axes.plot(value, lane + offset, marker, color=style.colour, markersize=6.5, markeredgewidth=1.8)
    fastest = max((run.samples_per_s or 0.0 for run in comparison.runs), default=0.0)
    axes.set_xlim(0, 1.08 * fastest or 1)
    axes.set_xlabel("training samples per second")
    axes.xaxis.set_major_formatter(numbers())
    return figure


def link_bytes(comparison: Comparison) -> Figure:
    """A mark per finished run and link class on a logarithmic scale; zeros are written out."""
    figure, axes = lanes([arm.label for arm in comparison.arms], extra=0.35)
    values = [run.payload_bytes(link) for arm in comparison.arms for run in arm.complete for link in LINKS]
    positive = [value for value in values if value]
    low, high = (min(positive), max(positive)) if positive else (1.0, 10.0)
    axes.set_xscale("log")
    # A decade of room at the left is where zeros are written.
    axes.set_xlim(10 ** (math.floor(math.log10(low)) - 1), high * 3)
    for lane, arm in enumerate(comparison.arms):
        style = look(arm.index)
        for link, side in zip(LINKS, (-0.17, 0.17), strict=True):
            found = [value for run in arm.complete if (value := run.payload_bytes(link)) is not None]
            offsets = _spread(len(found), 0.2)
            fill = style.colour if link == "inter" else "white"
            for value, offset in zip(found, offsets, strict=True):
                if value > 0:
                    y = lane + side + offset
                    axes.plot(
                        value, y, style.marker, color=style.colour, markerfacecolor=fill, markersize=6.5
                    )
            zeros = sum(value <= 0 for value in found)
            if zeros:
                said = f"0 B {LINK_WORDS[link]} ({words.count(zeros, 'run')})"
                axes.annotate(
                    said, (0.01, lane + side), xycoords=("axes fraction", "data"), va="center", fontsize=8.5
                )
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: words.size(value)))
    axes.xaxis.set_minor_formatter(FuncFormatter(lambda value, _: ""))
    axes.set_xlabel("payload bytes per run, all ranks together (logarithmic)")
    handles = [
        Line2D(
            [], [], linestyle="", marker="o", color="#50555e", markerfacecolor=fill, label=LINK_WORDS[link]
        )
        for link, fill in zip(LINKS, ("white", "#50555e"), strict=True)
    ]
    figure.legend(handles=handles, loc="outside lower left", ncols=2, frameon=False)
    return figure


def time_parts(comparison: Comparison) -> Figure:
    """Stacked mean parts of the training time of every arm."""
    figure, axes = lanes([arm.label for arm in comparison.arms], extra=0.35)
    for lane, arm in enumerate(comparison.arms):
        left = 0.0
        for part, value in mean_parts(arm).items():
            axes.barh(
                lane,
                value,
                left=left,
                height=0.6,
                color=PART_COLOURS[part],
                hatch=PART_HATCHES[part],
                edgecolor="white",
                linewidth=0.6,
            )
            left += value
    axes.set_xlabel("seconds of training")
    axes.xaxis.set_major_formatter(numbers())
    handles = [
        Patch(
            facecolor=PART_COLOURS[part],
            hatch=PART_HATCHES[part],
            edgecolor="white",
            label=part.replace("_", " "),
        )
        for part in PARTS
    ]
    figure.legend(handles=handles, loc="outside lower left", ncols=5, frameon=False)
    return figure


def mean_parts(arm: Arm) -> dict[str, float]:
    """Mean seconds of each part over the runs of `arm` that recorded them; empty if none did."""
    found = [run.parts_s for run in arm.complete if run.parts_s]
    return {part: statistics.fmean(parts.get(part, 0.0) for parts in found) for part in PARTS if found}
