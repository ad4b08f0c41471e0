"""The figure of page one: a lane for each arm, the share of the baseline's time saved, and its accuracy."""

from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import FuncFormatter, MaxNLocator

from .. import words
from ..answers import MARGIN_POINTS, in_order, points_words, to_target_words
from ..claims.arm_speedup import ArmSpeedup, ratios
from ..claims.speedups import Speedups
from .style import BAND, EDGE, GREY, INK, PAPER, TOLERANCE, colour, marker, plain

WIDE, NARROW = 12.6, 4.7  # inches: across the page, and across a phone
LEAST, MOST = -1.0, 1.0  # ends of the axis at most: an arm of twice the baseline's time stands at its edge
BOUND: dict[str, Any] = {"color": INK, "linewidth": 1.2, "linestyle": (0, (5, 3))}


def lanes(speedups: Speedups, *, narrow: bool = False) -> Figure:
    """A lane for each arm, in the order of the time saved. `narrow`: names above the lanes, for a phone."""
    shown = in_order(speedups)
    figure = Figure(figsize=(NARROW, 1.5 + 0.62 * len(shown)) if narrow else (WIDE, 1.15 + 0.3 * len(shown)))
    time, accuracy = figure.subplots(1, 2, sharey=True, width_ratios=(3, 1.2) if narrow else (3.4, 1))
    time.set_yticks(range(len(shown)), ["" if narrow else plain(line.arm.label, 34) for line in shown])
    time.set_ylim(len(shown) - 0.4, -0.75 if narrow else -0.6)
    time.set_xlim(_limits(speedups))
    if floor := speedups.fixed_floor.floor:
        time.axvspan(words.saved(1 / (1 + floor)), words.saved(1 + floor), color=BAND, linewidth=0, zorder=0)
    if speedups.bound.value is not None:
        time.axvline(words.saved(speedups.bound.value), zorder=1, **BOUND)
    accuracy.axvspan(-MARGIN_POINTS, 0, color=TOLERANCE, linewidth=0, zorder=0)
    for row, line in enumerate(shown):
        fill = GREY if speedups.not_comparable(line.arm) else colour(line.arm.index)
        middle = row + 0.1 * narrow  # below the name
        for full, ratio in zip((True, False), ratios(line), strict=True):
            if ratio:
                y = middle - 0.13 * bool(line.to_target) if full else middle + 0.2
                left, right = time.get_xlim()
                values = [words.saved(value) for value in (ratio.low, ratio.point, ratio.high)]
                shape = marker(line.arm.index) if values[1] >= left else "<"
                _interval(time, np.clip(values, left, right), y, fill, shape, full=full)
        if line.quality:
            ends = line.quality.interval
            values = [ends.low, line.quality.difference, ends.high]
            _interval(accuracy, values, middle, fill, marker(line.arm.index), full=True)
        _name_numbers(time, accuracy, speedups, line, row, narrow=narrow)
    _axes(time, accuracy, speedups, narrow=narrow)
    look: dict[str, Any] = {"loc": "outside lower left", "frameon": False, "fontsize": 8.5}
    figure.legend(handles=_legend(speedups), ncols=2 if narrow else 6, **look)
    return figure


def _limits(speedups: Speedups) -> tuple[float, float]:
    """The ends of the axis of time: all intervals and the bound, as far as `LEAST` and `MOST`."""
    known = [ratio for line in speedups.lines for ratio in ratios(line) if ratio]
    values = [end for ratio in known for end in (ratio.low, ratio.point, ratio.high)]
    saved = [*map(words.saved, [*values, *filter(None, [speedups.bound.value])]), -0.02, 0.02]
    low, high = max(min(saved), LEAST), min(max(saved), MOST)
    room = 0.04 * (high - low)
    return low - room, high + room


def _interval(axes: Axes, values: Any, y: float, fill: str, shape: str, *, full: bool) -> None:
    """Low end, point and high end on a lane at `y`; thin, with an open mark, unless `full`."""
    low, point, high = values
    axes.plot([low, high], [y, y], color=fill, linewidth=2.4 if full else 1.2, solid_capstyle="butt")
    look: dict[str, Any] = {"color": fill, "markerfacecolor": fill if full else PAPER, "zorder": 4}
    axes.plot(point, y, shape, markersize=7 if full else 5.5, markeredgewidth=1.3, **look)


def _axes(time: Axes, accuracy: Axes, speedups: Speedups, *, narrow: bool) -> None:
    percent = FuncFormatter(lambda value, _: f"{100 * value:.3g}".replace("-", "−") + " %")
    time.xaxis.set_major_formatter(percent)
    time.xaxis.set_major_locator(MaxNLocator(5 if narrow else 9, steps=[1, 2, 2.5, 5, 10]))
    time.set_xlabel("share of the baseline's time that is saved")
    accuracy.xaxis.set_major_locator(MaxNLocator(3 if narrow else 5))
    metric = speedups.comparison.metric.name
    accuracy.set_xlabel("points" if narrow else f"final {metric}, percentage points")
    for axes in (time, accuracy):
        axes.axvline(0, color=EDGE, linewidth=1, zorder=1)
        axes.grid(visible=False, axis="y")
        axes.tick_params(axis="y", length=0)
        axes.spines["left"].set_visible(False)


def _name_numbers(
    time: Axes, accuracy: Axes, speedups: Speedups, line: ArmSpeedup, row: int, *, narrow: bool
) -> None:
    """The numbers of a lane, or why the arm may not be compared; on a phone its name too, above the lane."""
    ratio, why = line.fixed_work or line.to_target, speedups.not_comparable(line.arm)
    numbers = f"{words.saving(ratio)}  {words.factor(ratio.point)}" if ratio else "no ratio"
    numbers = f"not comparable: {why}" if why else numbers
    look: dict[str, Any] = {"fontsize": 8.5, "va": "center", "color": GREY if why else INK}
    look |= {"xycoords": ("axes fraction", "data"), "annotation_clip": False}
    if narrow:
        look["bbox"] = {"facecolor": PAPER, "edgecolor": "none", "pad": 0.8}
        time.annotate(plain(line.arm.label, 24), (0, row - 0.4), fontweight="bold", **look)
        time.annotate(numbers, (1, row - 0.4), ha="right", **look)
    else:
        time.annotate(numbers, (1.01, row), **look)
        accuracy.annotate(points_words(line), (1.02, row), **look)


def _legend(speedups: Speedups) -> list[Line2D | Patch]:
    grey: dict[str, Any] = {"linestyle": "-", "marker": "o", "color": GREY, "markersize": 6.5}
    handles: list[Line2D | Patch] = [Line2D([], [], linewidth=2.4, **grey, label="same epochs")]
    if any(line.to_target for line in speedups.lines):
        open_mark: dict[str, Any] = {"linewidth": 1.2, "markerfacecolor": PAPER}
        handles.append(Line2D([], [], **grey, **open_mark, label=to_target_words(speedups)))
    if speedups.bound.value is not None:
        bound = words.percent(words.saved(speedups.bound.value))
        handles.append(Line2D([], [], **BOUND, label=f"at most {bound} can be saved"))
    if speedups.fixed_floor.floor:
        handles.append(Patch(color=BAND, label="noise of the baseline"))
    handles.append(Patch(color=TOLERANCE, label=f"tolerated loss: {MARGIN_POINTS:g} points"))
    if any(speedups.not_comparable(line.arm) for line in speedups.lines):
        handles.append(Patch(color=GREY, label="not comparable"))
    return handles
