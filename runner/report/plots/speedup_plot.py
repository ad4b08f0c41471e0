"""The figure of the answer: each arm's ratio of times with its interval, the noise floor and the bound."""

import math
from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from .. import words
from ..claims.speedups import ArmSpeedup, Speedups, ratios
from .arm_style import look
from .lanes import lanes
from .style import Drawn, drawn, label_logarithmic, plain, round_numbers, short, where

TITLE = "How many times as fast"
CAPTION = (
    "Ratio of times, baseline over arm, with its interval. Full mark: time of all work; open mark: time to"
    " target. Grey: nothing in here is more than noise (dark: all work, light: to the target). Dashed: the"
    " bound, which no saving of communication can exceed here (with uneven devices: no division of the work)."
)
_ROUNDING = 1e-9
_FLOORS, _BOUND = ("#c9cfd8", "#e9ebef"), "#444444"


def draw(answer: Speedups) -> Drawn:
    """The figure as files."""
    comparison = answer.comparison
    return drawn("speedups", lambda: forest(answer), told=where(comparison.world, comparison.size))


def forest(answer: Speedups) -> Figure:
    """A lane for each arm; the ratio on a logarithmic axis."""
    shown = lines(answer)
    figure, axes = lanes([line.arm.label for line in shown], extra=0.4)
    axes.set_xscale("log")
    axes.axvline(1, color="#8a8f98", linewidth=0.9, zorder=1)
    # The larger one first, so that both are seen.
    for floor, colour, _ in sorted(_floors(answer), reverse=True):
        axes.axvspan(1 / (1 + floor), 1 + floor, color=colour, linewidth=0, zorder=0)
    if answer.bound.value is not None:
        axes.axvline(answer.bound.value, color=_BOUND, linewidth=1.1, linestyle=(0, (5, 3)), zorder=1)
    for lane, line in enumerate(shown):
        for offset, of_target in ((-0.14, False), (0.14, True)):
            _mark(axes, line, lane + offset, of_target=of_target)
        if line.fixed_work is None and line.to_target is None:
            axes.annotate(
                "no ratio", (0.01, lane), xycoords=("axes fraction", "data"), va="center", fontsize=8.5
            )
    _limits(axes, answer, shown)
    axes.set_xlabel(f"times as fast as {plain(short(answer.baseline.label, 40))} (logarithmic)")
    label_logarithmic(axes.xaxis)
    figure.legend(handles=_legend(answer), loc="outside lower left", ncols=2, frameon=False, fontsize=8.5)
    return figure


def alternative(answer: Speedups) -> str:
    """The figure in words, for who cannot see it."""
    told = "; ".join(
        f"{line.arm.label}: {words.interval(line.fixed_work)} in all work, "
        f"{words.interval(line.to_target)} to target"
        for line in lines(answer)
    )
    comparison = answer.comparison
    return f"{TITLE} ({where(comparison.world, comparison.size)}) as {answer.baseline.label}. {told}."


def lines(answer: Speedups) -> list[ArmSpeedup]:
    """The arms of the figure, the placebo last."""
    return [*answer.lines, *([answer.placebo] if answer.placebo else [])]


def _floors(answer: Speedups) -> list[tuple[float, str, str]]:
    """Each noise floor that there is, as a share, with its colour and what it is of."""
    pairs = ((answer.fixed_floor.floor, "of all work"), (answer.target_floor.floor, "to the target"))
    return [(m, colour, said) for (m, said), colour in zip(pairs, _FLOORS, strict=True) if m is not None]


def _mark(axes: Axes, line: ArmSpeedup, y: float, *, of_target: bool) -> None:
    found = line.to_target if of_target else line.fixed_work
    if found is None:
        return
    style = look(line.arm.index)
    low, high = _inside(found.low), _inside(found.high)
    axes.plot([low, high], [y, y], color=style.colour, linewidth=1.8, solid_capstyle="butt")
    axes.plot(
        found.point,
        y,
        style.marker,
        color=style.colour,
        markerfacecolor="white" if of_target else style.colour,
        markersize=7,
        markeredgewidth=1.4,
        zorder=4,
    )


def _inside(value: float) -> float:
    """An end that is not known lies beyond every axis."""
    return min(max(value, 1e-6), 1e6)


def _limits(axes: Axes, answer: Speedups, shown: Sequence[ArmSpeedup]) -> None:
    found = [pair for line in shown for pair in ratios(line) if pair is not None]
    ends = [end for one in found for end in (one.low, one.point, one.high) if 0 < end < math.inf]
    ends += [answer.bound.value] if answer.bound.value is not None else []
    low, high = min([*ends, 0.95]), max([*ends, 1.05])
    room = (high / low) ** 0.06
    low, high = low / room, high * room
    # A label on each side of 1, also where all arms are slower, or faster, than the baseline.
    labels = round_numbers(low, high)
    below, above = (
        max(one for one in labels if one < 1 - _ROUNDING),
        min(one for one in labels if one > 1 + _ROUNDING),
    )
    axes.set_xlim(min(low, below), max(high, above))


def _legend(answer: Speedups) -> list[Line2D | Patch]:
    grey = {"linestyle": "", "marker": "o", "color": "#50555e", "markersize": 7.0}
    found: list[Line2D | Patch] = [Line2D([], [], **grey, label="all work")]
    if any(line.to_target for line in lines(answer)):
        found.append(Line2D([], [], **grey, markerfacecolor="white", label="to the target"))
    found += [
        Patch(color=colour, label=f"noise {said}, {floor:.1%}") for floor, colour, said in _floors(answer)
    ]
    bound = answer.bound.value
    if bound is not None:
        found.append(Line2D([], [], color=_BOUND, linestyle=(0, (5, 3)), label=f"bound, {bound:.2f}"))
    return found
