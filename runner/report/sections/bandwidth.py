"""Section: time to target over the rate of the links between nodes, and where the lines of two arms cross."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import combinations, pairwise
from typing import TYPE_CHECKING

from .. import words
from ..data.arms import Comparison, settings
from ..data.means import over_runs
from ..plots.pictures import Plot
from ..section import MARGIN, Rows, Section, looks_of, one_each, with_rows
from ..simulation_errors import where

if TYPE_CHECKING:
    from matplotlib.figure import Figure

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
    def lines(self) -> dict[str, dict[float, float]]:
        """Seconds to target by arm and rate: geometric means where all runs of an arm reached it."""
        lines: dict[str, dict[float, float]] = {label: {} for label in looks_of(self.comparisons.values())}
        for rate, comparison in self.comparisons.items():
            for arm in comparison.arms:
                if arm.reached and len(arm.reached) == len(arm.counted):
                    lines[arm.label][rate] = over_runs([run.to_target_s or math.nan for run in arm.reached])
        return lines

    @cached_property
    def crossings(self) -> list[LineCrossing]:
        """Of all pairs of arms, by rate."""
        pairs = combinations(self.lines, 2)
        return sorted(c for pair in pairs for c in crossings(*pair, self.lines, list(self.comparisons)))

    @property
    def sentences(self) -> list[str]:
        """The crossings in words, and the arms that have no line."""
        sentences = [
            f"{below} is faster below {words.significant(rate)} Gbit/s, {above} above"
            f" ({words.seconds(seconds)} there)"
            for rate, below, above, seconds in self.crossings
        ]
        short = [arm for arm, line in self.lines.items() if len(line) < len(self.comparisons)]
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
    first: str, second: str, lines: Mapping[str, Mapping[float, float]], rates: Sequence[float]
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
        share = ahead[left] / (ahead[left] - ahead[right])  # of the way, on a logarithmic axis
        below, above = (first, second) if ahead[low] > 0 else (second, first)
        seconds = of_first[left] * (of_first[right] / of_first[left]) ** share
        made.append((left * (right / left) ** share, below, above, seconds))
    return made


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

    looks, rates = looks_of(bandwidth.comparisons.values()), list(bandwidth.comparisons)
    figure, axes = arm_lines(
        {(arm, looks[arm]): {r: (s, s, s) for r, s in line.items()} for arm, line in bandwidth.lines.items()},
        rates,
        xlabel="rate of a card between nodes in Gbit/s",
        ylabel="time to target in seconds",
    )
    for rate, _, _, seconds in bandwidth.crossings:
        axes.plot(rate, seconds, "o", markersize=9, mfc="none", mec="#1d2129", mew=1.0, zorder=5)
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
