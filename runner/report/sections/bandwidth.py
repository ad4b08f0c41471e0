"""Section: time to target over the rate of the links between nodes, and where the lines of two arms cross."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import combinations, pairwise

from matplotlib.figure import Figure

from .. import words
from ..data.arms import Comparison, computed_on, settings
from ..data.means import over_runs
from ..plots.curves import arm_lines
from ..plots.pictures import Plot
from ..section import Rows, Section, grouped, numbered

RATE = "cluster.links.inter.rate_gbit"
ALIKE = ("cluster.", "train.global_batch_size")  # the sizes differ in none of these keys but the rate
MARGIN = 1.01  # times as long: below it two arms count as equally fast
TITLE = "Time to target against the rate between nodes"
CAPTION = (
    "Geometric means over runs, where all runs of an arm reached the target; straight on two logarithmic axes"
    " between the rates that were run. Arms less than 1 % apart at a rate count as equally fast there."
)


@dataclass(frozen=True, kw_only=True)
class Bandwidth:
    """A study whose sizes differ in one rate: the comparison of each rate in Gbit/s, ascending."""

    comparisons: dict[float, Comparison]

    @property
    def place(self) -> dict[str, str]:
        """Study, model, dataset and world."""
        first = next(iter(self.comparisons.values()))
        return {name: value for name, value in first.place.items() if name != "size"}

    @cached_property
    def lines(self) -> dict[str, dict[float, float]]:
        """Seconds to target by arm and rate: geometric means where all runs of an arm reached it."""
        lines: dict[str, dict[float, float]] = {}
        for rate, comparison in self.comparisons.items():
            for arm in comparison.arms:
                line = lines.setdefault(arm.label, {})
                if arm.reached and len(arm.reached) == len(arm.counted):
                    line[rate] = over_runs([run.to_target_s or math.nan for run in arm.reached])
        return lines

    @property
    def crossings_in_words(self) -> list[str]:
        """Where any two arms cross, by rate."""
        crossed = sorted(
            (rate, first, second) if first_below else (rate, second, first)
            for first, second in combinations(self.lines, 2)
            for rate, first_below in crossings(self.lines[first], self.lines[second], list(self.comparisons))
        )
        return [
            f"{below} is faster below {words.significant(rate)} Gbit/s, {above} above"
            for rate, below, above in crossed
        ] or ["no two lines cross"]


def _by_rate(comparisons: Sequence[Comparison]) -> dict[float, Comparison]:
    """The comparison of each rate; empty unless each has one rate of its own, and all have one target."""
    by_rate: dict[float, Comparison] = {}
    rest = set[str]()  # what must be alike
    for comparison in comparisons:
        for keys in map(settings, comparison.runs):
            rate = keys.get(RATE)
            if not isinstance(rate, int | float) or not 0 < rate < math.inf:
                return {}
            if by_rate.setdefault(float(rate), comparison) is not comparison:
                return {}
            alike = {key: value for key, value in keys.items() if key.startswith(ALIKE) and key != RATE}
            rest.add(repr((comparison.targets, alike)))
    one_each = len(by_rate) == len(comparisons) > 1
    one_target = len(rest) == 1 and len(comparisons[0].targets) == 1
    return dict(sorted(by_rate.items())) if one_each and one_target else {}


def crossings(
    first: Mapping[float, float], second: Mapping[float, float], rates: Sequence[float]
) -> list[tuple[float, bool]]:
    """At which rates two lines cross, straight on two logarithmic axes; whether the first is faster below.

    No line leads over a rate at which one of them has no time. Arms less than 1 % apart count as equally
    fast: they cross where one is clearly faster before and the other after, at the first place at which they
    are equal between.
    """
    ahead = {rate: math.log(second[rate] / first[rate]) for rate in rates if rate in first and rate in second}
    clear = [rate for rate in ahead if abs(ahead[rate]) >= math.log(MARGIN)]
    made: list[tuple[float, bool]] = []
    for low, high in pairwise(clear):
        between = [rate for rate in rates if low <= rate <= high]
        if ahead[low] * ahead[high] > 0 or not set(between) <= ahead.keys():
            continue
        left, right = next((a, b) for a, b in pairwise(between) if ahead[a] * ahead[b] <= 0)
        share = ahead[left] / (ahead[left] - ahead[right])  # of the way, on a logarithmic axis
        made.append((left * (right / left) ** share, ahead[low] > 0))
    return made


class BandwidthSection(Section):
    """Table `bandwidth`; the figure of each study over rates."""

    order = 10
    template = """
{% for bandwidth in section.bandwidths %}
<section>
<h2>Which link is fast enough {{ page.workload(bandwidth.place) }}</h2>
<ul>
{% for sentence in bandwidth.crossings_in_words %}
<li>{{ sentence }}</li>
{% endfor %}
</ul>
{{ page.figure(pictures[loop.index0], results.anchors(bandwidth.comparisons.values())) }}
</section>
{% endfor %}
"""

    @cached_property
    def bandwidths(self) -> list[Bandwidth]:
        """One for each study, model, dataset and world with a target whose sizes differ in one rate."""
        groups = grouped(self.results.configured, lambda c: (c.study, c.model, c.dataset, c.world))
        return [Bandwidth(comparisons=by_rate) for by_rate in map(_by_rate, groups) if by_rate]

    def tables(self) -> dict[str, Rows]:
        """`bandwidth`: a row per arm and rate."""
        return {
            "bandwidth": [
                {**bandwidth.place, "arm": arm, "rate_gbit": rate, "to_target_s": line.get(rate)}
                for bandwidth in self.bandwidths
                for arm, line in bandwidth.lines.items()
                for rate in bandwidth.comparisons
            ]
        }

    def plots(self) -> list[Plot]:
        return [
            Plot(
                file=file,
                title=TITLE,
                caption=CAPTION,
                table="bandwidth",
                corner=words.world(
                    bandwidth.place["world"],
                    device=computed_on(run for c in bandwidth.comparisons.values() for run in c.runs),
                ),
                alternative=f"{TITLE}: {'; '.join(bandwidth.crossings_in_words)}",
                draw=(partial(draw, bandwidth),),
            )
            for file, bandwidth in numbered("bandwidth", self.bandwidths)
        ]


def draw(bandwidth: Bandwidth) -> Figure:
    """A line for each arm over all rates at which its runs reached the target."""
    return arm_lines(
        {arm: {rate: (time_s,) for rate, time_s in line.items()} for arm, line in bandwidth.lines.items()},
        bandwidth.comparisons,
        xlabel="rate of a card between nodes in Gbit/s",
        ylabel="time to target in seconds",
        log_y=True,
    )
