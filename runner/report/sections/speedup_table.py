"""Section: times as fast as the baseline, with intervals, noise floors and the bound of each comparison."""

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from .. import words
from ..claims.claim_tables import points_words, sentences, speedup_remarks, speedup_rows
from ..claims.speedups import ArmSpeedup, Speedups, ratios
from ..data.arms import Comparison, row_of
from ..plots.arm_style import colour, marker
from ..plots.pictures import Plot
from ..section import Rows, Section, one_each, with_rows
from ..simulation_errors import where

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

TITLE = "How many times as fast"
CAPTION = (
    "Ratio of times, baseline over arm, with its interval. Full mark: time of all work; open mark: time to"
    " target. Grey: nothing in here is more than noise (dark: all work, light: to the target). Dashed: the"
    " bound, which no saving of communication can exceed here (with uneven devices: no division of the work)."
)
ROUNDING = 1e-9
BOUND_COLOUR = "#444444"


class SpeedupSection(Section):
    """Table `speedups`; the table on the page and the figure of each comparison that has ratios."""

    order = 20
    template = """
{% for speedups in results.speedups %}
{% set comparison = speedups.comparison %}
{% set metric = comparison.metric.name %}
<section>
<h2>The answer: {{ section.title(comparison) }}{{ page.of_study(comparison.study) }}</h2>
{% for reason in speedups.forbidden %}
<p class="bad">No verdicts: {{ reason }}.</p>
{% endfor %}
<ul>
{% for sentence in section.sentences(speedups) %}
<li>{{ sentence }}</li>
{% endfor %}
</ul>
<div class="wide" role="region" aria-label="Speed-ups" tabindex="0">
<table class="sortable prose">
<caption>Times as fast as <strong>{{ speedups.baseline.label }}</strong>, geometric means with
{{ "%g" | format(100 * speedups.level) }} % intervals ({{ words.world(comparison.world) }}). Speed-up to the
target = throughput × statistical efficiency (fewer samples).
Points of final {{ metric }}: arm minus baseline.</caption>
<thead><tr><th scope="col">Arm</th><th scope="col">All work</th><th scope="col">To the target</th>
<th scope="col">Throughput</th><th scope="col">Statistical efficiency</th>
<th scope="col">Final {{ metric }}, points</th>
<th scope="col" class="text">Remarks</th></tr></thead>
{% for line in speedups.shown %}
<tbody><tr class="arm">
<th scope="row">{{ swatch(line.arm.index) }}{{ line.arm.label }}</th>
{#- #}<td>{{ words.interval(line.fixed_work) }}</td>
<td>{{ words.interval(line.to_target) }}</td><td>{{ words.interval(line.throughput) }}</td>
<td>{{ words.interval(line.statistical) }}</td><td>{{ section.points_words(line) }}</td>
<td class="text">{% for note in section.remarks(speedups, line) %}<small>{{ note }}</small>{% endfor %}</td>
{#- #}</tr></tbody>
{% endfor %}
</table>
</div>
<div class="figures alone">
{{ page.figure(pictures[loop.index0], results.anchors([comparison])) }}
</div>
</section>
{% endfor %}
"""
    points_words = staticmethod(points_words)
    remarks = staticmethod(speedup_remarks)
    sentences = staticmethod(sentences)

    def title(self, comparison: Comparison) -> str:
        """The workload, and of tuned and the paper's settings which, where the report has both."""
        row = row_of(comparison, self.results.comparisons)
        parts = [f"{comparison.model} on {comparison.dataset}", comparison.size, row]
        return ", ".join(part for part in parts if part)

    def tables(self) -> dict[str, Rows]:
        """`speedups`: a row per arm and comparison."""
        return with_rows(speedups=speedup_rows(self.results.speedups))

    def printed(self) -> dict[str, Rows]:
        """`speedups`: the table of the page."""
        return with_rows(
            speedups=[
                {
                    "workload": self.title(speedups.comparison),
                    "world": words.world(speedups.comparison.world),
                    "baseline": speedups.baseline.label,
                    "arm": line.arm.label,
                    "all work": words.interval(line.fixed_work),
                    "to the target": words.interval(line.to_target),
                    "throughput": words.interval(line.throughput),
                    "statistical efficiency": words.interval(line.statistical),
                    "final metric, points": points_words(line),
                }
                for speedups in self.results.speedups
                for line in speedups.shown
            ]
        )

    def plots(self) -> list[Plot]:
        return one_each(
            "speedups",
            self.results.speedups,
            title=TITLE,
            caption=CAPTION,
            corner=lambda speedups: where(speedups.comparison.world, speedups.comparison.size),
            draw=draw,
            alternative=alternative,
        )


def draw(speedups: Speedups) -> "Figure":
    """A row for each arm; the ratio on a logarithmic axis."""
    from ..plots.strip_plot import strips
    from ..plots.style import label_logarithmic, plain, short

    shown = speedups.shown
    figure, axes = strips([line.arm.label for line in shown], extra=0.4)
    axes.set_xscale("log")
    axes.axvline(1, color="#8a8f98", linewidth=0.9, zorder=1)
    # The larger one first, so that both are seen.
    for floor, fill, _ in sorted(_floors(speedups), reverse=True):
        axes.axvspan(1 / (1 + floor), 1 + floor, color=fill, linewidth=0, zorder=0)
    if speedups.bound.value is not None:
        axes.axvline(speedups.bound.value, color=BOUND_COLOUR, linewidth=1.1, linestyle=(0, (5, 3)), zorder=1)
    for row, line in enumerate(shown):
        for offset, of_target in ((-0.14, False), (0.14, True)):
            _mark(axes, line, row + offset, of_target=of_target)
        if line.fixed_work is None and line.to_target is None:
            axes.annotate(
                "no ratio", (0.01, row), xycoords=("axes fraction", "data"), va="center", fontsize=8.5
            )
    _limits(axes, speedups, shown)
    axes.set_xlabel(f"times as fast as {plain(short(speedups.baseline.label, 40))} (logarithmic)")
    label_logarithmic(axes.xaxis)
    figure.legend(handles=_legend(speedups), loc="outside lower left", ncols=2, frameon=False, fontsize=8.5)
    return figure


def alternative(speedups: Speedups) -> str:
    """The figure in words, for readers who cannot see it."""
    arms = "; ".join(
        f"{line.arm.label}: {words.interval(line.fixed_work)} in all work, "
        f"{words.interval(line.to_target)} to target"
        for line in speedups.shown
    )
    comparison = speedups.comparison
    return f"{TITLE} ({where(comparison.world, comparison.size)}) as {speedups.baseline.label}. {arms}."


def _floors(speedups: Speedups) -> list[tuple[float, str, str]]:
    """Each noise floor that there is, as a share, with its colour and what it is of."""
    fixed, target = speedups.fixed_floor.floor, speedups.target_floor.floor
    floors = ((fixed, "#c9cfd8", "of all work"), (target, "#e9ebef", "to the target"))
    return [(floor, fill, of) for floor, fill, of in floors if floor is not None]


def _mark(axes: "Axes", line: ArmSpeedup, y: float, *, of_target: bool) -> None:
    ratio = line.to_target if of_target else line.fixed_work
    if ratio is None:
        return
    index = line.arm.index
    low, high = _inside(ratio.low), _inside(ratio.high)
    axes.plot([low, high], [y, y], color=colour(index), linewidth=1.8, solid_capstyle="butt")
    axes.plot(
        ratio.point,
        y,
        marker(index),
        color=colour(index),
        markerfacecolor="white" if of_target else colour(index),
        markersize=7,
        markeredgewidth=1.4,
        zorder=4,
    )


def _inside(value: float) -> float:
    """An end that is not known lies beyond every axis."""
    return min(max(value, 1e-6), 1e6)


def _limits(axes: "Axes", speedups: Speedups, shown: Sequence[ArmSpeedup]) -> None:
    from ..plots.style import round_numbers

    known = [ratio for line in shown for ratio in ratios(line) if ratio is not None]
    ends = [end for ratio in known for end in (ratio.low, ratio.point, ratio.high) if 0 < end < math.inf]
    ends += [speedups.bound.value] if speedups.bound.value is not None else []
    low, high = min([*ends, 0.95]), max([*ends, 1.05])
    room = (high / low) ** 0.06
    low, high = low / room, high * room
    # A label on each side of 1, also where all arms are slower, or faster, than the baseline.
    labels = round_numbers(low, high)
    below = max(label for label in labels if label < 1 - ROUNDING)
    above = min(label for label in labels if label > 1 + ROUNDING)
    axes.set_xlim(min(low, below), max(high, above))


def _legend(speedups: Speedups) -> "list[Artist]":
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    grey = {"linestyle": "", "marker": "o", "color": "#50555e", "markersize": 7.0}
    handles: list[Artist] = [Line2D([], [], **grey, label="all work")]
    if any(line.to_target for line in speedups.shown):
        handles.append(Line2D([], [], **grey, markerfacecolor="white", label="to the target"))
    for floor, fill, of in _floors(speedups):
        handles.append(Patch(color=fill, label=f"noise {of}, {floor:.1%}"))
    bound = speedups.bound.value
    if bound is not None:
        dashed = {"color": BOUND_COLOUR, "linestyle": (0, (5, 3))}
        handles.append(Line2D([], [], **dashed, label=f"bound, {bound:.2f}"))
    return handles
