"""Section: time to target over the rate of the links between nodes, and where the lines of two arms cross."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import combinations, pairwise
from typing import TYPE_CHECKING, Any

from .. import words
from ..data.arms import Arm, Comparison, settings
from ..data.means import geometric_mean
from ..plots.pictures import Plot
from ..section import MARGIN, Rows, Section, looks_of, one_each, with_rows
from ..simulation_errors import where

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Line = Mapping[float, float]
"""Seconds to target by rate in Gbit/s."""
LineCrossing = tuple[float, str, str, float]
"""Rate in Gbit/s at which two arms take equally long, the one faster below it and above it, seconds there."""

RATE = "cluster.links.inter.rate_gbit"
ALIKE = ("cluster.", "train.global_batch_size")  # the sizes differ in none of these keys but the rate
TITLE = "Time to target against the rate between nodes"
CAPTION = (
    "Geometric means over runs, straight on two logarithmic axes between the rates that were run."
    " Rings: where two lines cross."
)


@dataclass(frozen=True, kw_only=True)
class Bandwidth:
    """A study whose sizes differ in one rate: the comparison of each rate in Gbit/s, ascending."""

    comparisons: dict[float, Comparison]

    @cached_property
    def place(self) -> dict[str, str]:
        """Study, model, dataset and world."""
        first = next(iter(self.comparisons.values()))
        return {name: value for name, value in first.place.items() if name != "size"}

    @cached_property
    def arms(self) -> dict[str, int]:
        """Label and index of the look of each arm."""
        return looks_of(self.comparisons.values())

    @cached_property
    def lines(self) -> dict[str, Line]:
        """Geometric means at the rates at which all of an arm's runs reached the target."""
        lines: dict[str, dict[float, float]] = {label: {} for label in self.arms}
        for rate, comparison in self.comparisons.items():
            for arm in comparison.arms:
                if (seconds := _seconds(arm)) is not None:
                    lines[arm.label][rate] = seconds
        return dict(lines)

    @cached_property
    def crossings(self) -> list[LineCrossing]:
        """Of all pairs of arms, by rate."""
        pairs = combinations(self.arms, 2)
        return sorted(c for pair in pairs for c in crossings(*pair, self.lines, list(self.comparisons)))

    @property
    def sentences(self) -> list[str]:
        """The crossings in words, and the arms that have no line."""
        sentences = [
            f"{below} is faster below {words.significant(rate)} Gbit/s, {above} above"
            f" ({words.seconds(seconds)} there)"
            for rate, below, above, seconds in self.crossings
        ]
        short = [arm for arm in self.arms if len(self.lines[arm]) < len(self.comparisons)]
        sentences += [f"{arm}: not all runs reached the target at every rate" for arm in short]
        return sentences or ["no two lines cross"]


def bandwidths(comparisons: Iterable[Comparison]) -> list[Bandwidth]:
    """One for each study, model, dataset and world with a target whose sizes differ in their rate alone."""
    groups: dict[tuple[str, str, str, str], list[Comparison]] = {}
    for c in comparisons:
        if not c.assumption:
            groups.setdefault((c.study, c.model, c.dataset, c.world), []).append(c)
    by_rates = [_by_rate(members) for members in groups.values()]
    return [Bandwidth(comparisons=by_rate) for by_rate in by_rates if len(by_rate) > 1]


def _by_rate(comparisons: Sequence[Comparison]) -> dict[float, Comparison]:
    """The comparison of each rate; empty unless each size has one rate of its own, and all one target."""
    by_rate: dict[float, Comparison] = {}
    alike: set[str] = set()
    for comparison in comparisons:
        flat = [settings(run) for run in comparison.runs]
        rates = {keys.get(RATE) for keys in flat}
        rate = rates.pop() if len(rates) == 1 else None
        if not isinstance(rate, int | float) or not 0 < rate < math.inf or rate in by_rate:
            return {}
        by_rate[float(rate)] = comparison
        alike |= {
            repr([(k, v) for k, v in keys.items() if k.startswith(ALIKE) and k != RATE]) for keys in flat
        }
    targets = {tuple(comparison.targets) for comparison in comparisons}
    if len(targets) != 1 or len(targets.pop()) != 1 or len(alike) != 1:
        return {}
    return dict(sorted(by_rate.items()))


def crossings(
    first: str, second: str, lines: Mapping[str, Line], rates: Sequence[float]
) -> list[LineCrossing]:
    """Where the lines of two arms cross, straight between neighbouring `rates` on two logarithmic axes.

    No line leads over a rate at which one of them has no time. Arms less than 1 % apart count as equally
    fast: they cross where one is clearly faster before and the other after, at the first place at which they
    are equal between.
    """
    of_first, of_second = lines[first], lines[second]
    both = [rate for rate in rates if rate in of_first and rate in of_second]
    ahead = {rate: math.log(of_second[rate] / of_first[rate]) for rate in both}  # > 0: first is faster
    clear = [rate for rate in both if abs(ahead[rate]) >= math.log(MARGIN)]
    made: list[LineCrossing] = []
    for low, high in pairwise(clear):
        between = [rate for rate in rates if low <= rate <= high]
        if ahead[low] * ahead[high] > 0 or not set(between) <= ahead.keys():
            continue
        left, right = next((a, b) for a, b in pairwise(between) if ahead[a] * ahead[b] <= 0)
        share = ahead[left] / (ahead[left] - ahead[right])
        below, above = (first, second) if ahead[low] > 0 else (second, first)
        rate, seconds = (
            _on_the_way(*ends, share) for ends in ((left, right), (of_first[left], of_first[right]))
        )
        made.append((rate, below, above, seconds))
    return made


def _on_the_way(start: float, end: float, share: float) -> float:
    """`share` of the way from start to end on a logarithmic axis."""
    return start * (end / start) ** share


def _seconds(arm: Arm) -> float | None:
    """Geometric mean of an arm's scored times; None unless all runs reached the target."""
    times = [run.crossing.scored_s for run in arm.reached if run.crossing]
    if not times or len(times) < len(arm.counted):
        return None
    return geometric_mean(times) if len(times) > 1 else times[0]


class BandwidthSection(Section):
    """Table `bandwidth`; the figure of each study over rates."""

    order = 10
    template = """
{% for bandwidth in section.bandwidths %}
<section>
{% set workload = bandwidth.place.model ~ " on " ~ bandwidth.place.dataset %}
<h2>Which link is fast enough: {{ workload }}{{ page.of_study(bandwidth.place.study) }}</h2>
<ul>
{% for sentence in bandwidth.sentences %}
<li>{{ sentence }}</li>
{% endfor %}
</ul>
<div class="figures alone">
{{ page.figure(pictures[loop.index0], results.anchors(bandwidth.comparisons.values())) }}
</div>
<p class="soft">Arms less than 1 % apart at a rate count as equally fast there.</p>
</section>
{% endfor %}
"""

    @cached_property
    def bandwidths(self) -> list[Bandwidth]:
        return bandwidths(self.results.comparisons)

    def tables(self) -> dict[str, Rows]:
        """`bandwidth`: a row per arm and rate."""
        return with_rows(
            bandwidth=[
                {**bandwidth.place, "arm": arm, "rate_gbit": rate, "to_target_s": line.get(rate)}
                for bandwidth in self.bandwidths
                for arm, line in bandwidth.lines.items()
                for rate in bandwidth.comparisons
            ]
        )

    def plots(self) -> list[Plot]:
        return one_each(
            "bandwidth",
            self.bandwidths,
            title=TITLE,
            caption=CAPTION,
            corner=lambda bandwidth: where(bandwidth.place["world"], ""),
            draw=draw,
            alternative=alternative,
        )


def draw(bandwidth: Bandwidth) -> "Figure":
    """A line for each arm over all rates at which its runs reached the target."""
    from ..plots.curves import arm_lines
    from ..plots.style import label_logarithmic

    figure, axes = arm_lines(
        {
            (arm, index): {rate: (s, s, s) for rate, s in bandwidth.lines[arm].items()}
            for arm, index in bandwidth.arms.items()
        },
        list(bandwidth.comparisons),
        xlabel="rate of a card between nodes in Gbit/s",
        ylabel="time to target in seconds",
    )
    for rate, _, _, seconds in bandwidth.crossings:
        ring: Any = {"markerfacecolor": "none", "markeredgecolor": "#1d2129", "markeredgewidth": 1.0}
        axes.plot(rate, seconds, "o", markersize=9, **ring, zorder=5)
    axes.set_yscale("log")
    label_logarithmic(axes.yaxis)
    return figure


def alternative(bandwidth: Bandwidth) -> str:
    """The figure in words, for readers who cannot see it."""
    arms = [
        f"{label}: " + ", ".join(f"{words.seconds(s)} at {rate:g} Gbit/s" for rate, s in sorted(line.items()))
        for label, line in bandwidth.lines.items()
        if line
    ]
    return f"{TITLE} ({where(bandwidth.place['world'], '')}). {'; '.join([*arms, *bandwidth.sentences])}."
