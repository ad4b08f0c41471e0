"""Section: time to target over the rate of the links between nodes, and where the lines of two arms cross."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import combinations, pairwise
from typing import TYPE_CHECKING, Any

from .. import words
from ..data.arms import Arm, Comparison
from ..data.load import Run
from ..data.means import geometric_mean
from ..plots.arm_style import look
from ..plots.pictures import Plot
from ..ranking import MARGIN
from ..section import Rows, Section, one_each, with_rows
from ..simulation_errors import where

if TYPE_CHECKING:
    from matplotlib.figure import Figure

ArmSpeedup = Mapping[float, float]
"""Seconds to target by rate in Gbit/s."""


TITLE = "Time to target against the rate between nodes"
CAPTION = (
    "Geometric means over runs, straight on two logarithmic axes between the rates that were run. Rings:"
    " where two lines cross. Dotted: the baseline without exposed transfers and waiting, which no link can"
    " shorten."
)


@dataclass(frozen=True, kw_only=True)
class LineCrossing:
    """Where two arms take equally long: `below` is the faster one at lower rates, `above` at higher ones."""

    below: str
    above: str
    rate_gbit: float
    seconds: float


@dataclass(frozen=True, kw_only=True)
class Bandwidth:
    """A study whose sizes differ in one rate. `arms`: label and index of the look; `arms[0]` is the baseline.

    `lines` hold the rates at which all of an arm's runs reached the target, geometric means over them.
    `floor`: the baseline's times less exposed transfers and waiting, which no link can shorten.
    """

    study: str
    model: str
    dataset: str
    world: str
    arms: dict[str, int]
    rates: list[float]
    lines: dict[str, dict[float, float]]
    floor: dict[float, float]
    runs: dict[tuple[str, float], tuple[int, int]]
    comparisons: list[Comparison]

    @property
    def baseline(self) -> str:
        """The arm that the floor is of."""
        return next(iter(self.arms))

    @property
    def crossings(self) -> list[LineCrossing]:
        """Of all pairs of arms, by rate."""
        pairs = combinations(self.arms, 2)
        all_pairs = [crossing for pair in pairs for crossing in crossings(*pair, self.lines, self.rates)]
        return sorted(all_pairs, key=lambda crossing: (crossing.rate_gbit, crossing.below, crossing.above))

    @property
    def sentences(self) -> list[str]:
        """The crossings in words, and the arms that have no line."""
        sentences = [
            f"{crossing.below} is faster below {words.significant(crossing.rate_gbit)} Gbit/s, "
            f"{crossing.above} above ({words.seconds(crossing.seconds)} there)"
            for crossing in self.crossings
        ]
        short = [arm for arm in self.arms if len(self.lines[arm]) < len(self.rates)]
        sentences += [f"{arm}: not all runs reached the target at every rate" for arm in short]
        return sentences or ["no two lines cross"]


def bandwidths(comparisons: Iterable[Comparison]) -> list[Bandwidth]:
    """One for each study, model, dataset and world with a target whose sizes differ in their rate alone."""
    groups: dict[tuple[str, str, str, str], list[Comparison]] = {}
    for c in comparisons:
        if not c.assumption:
            groups.setdefault((c.study, c.model, c.dataset, c.world), []).append(c)
    by_rates = {place: _by_rate(members) for place, members in groups.items()}
    return [_bandwidth(*place, by_rate) for place, by_rate in by_rates.items() if len(by_rate) > 1]


def crossings(
    first: str, second: str, lines: Mapping[str, ArmSpeedup], rates: Sequence[float]
) -> list[LineCrossing]:
    """Where the lines of two arms cross, straight between neighbouring `rates` on two logarithmic axes.

    No line leads over a rate at which one of them has no time. Arms less than 1 % apart count as equally
    fast: they cross where one is clearly faster before and the other after, at the first place at which they
    are equal between.
    """
    found: list[LineCrossing] = []
    neighbours: list[float] = []
    for rate in [*rates, math.nan]:
        if rate in lines[first] and rate in lines[second]:
            neighbours.append(rate)
        else:
            found += _crossings(first, second, lines, neighbours)
            neighbours = []
    return found


def _crossings(
    first: str, second: str, lines: Mapping[str, ArmSpeedup], rates: Sequence[float]
) -> list[LineCrossing]:
    """The crossings over neighbouring rates at which both arms have a time."""
    of_first, of_second = lines[first], lines[second]
    ahead = {rate: math.log(of_second[rate] / of_first[rate]) for rate in rates}  # > 0: first is faster
    clear = [rate for rate in rates if abs(ahead[rate]) >= math.log(MARGIN)]
    found: list[LineCrossing] = []
    for low, high in pairwise(clear):
        if ahead[low] * ahead[high] > 0:
            continue
        between = [rate for rate in rates if low <= rate <= high]
        left, right = next((a, b) for a, b in pairwise(between) if ahead[a] * ahead[b] <= 0)
        share = ahead[left] / (ahead[left] - ahead[right])
        below, above = (first, second) if ahead[low] > 0 else (second, first)
        found.append(
            LineCrossing(
                below=below,
                above=above,
                rate_gbit=_on_the_way(left, right, share),
                seconds=_on_the_way(of_first[left], of_first[right], share),
            )
        )
    return found


def rate_of(run: Run) -> float | None:
    """Gbit/s of a card between nodes, if the run's cluster describes one."""
    value: Any = run.config
    for key in ("cluster", "links", "inter", "rate_gbit"):
        value = value.get(key) if isinstance(value, Mapping) else None
    usable = isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < math.inf
    return float(value) if usable else None


def _by_rate(comparisons: Sequence[Comparison]) -> dict[float, Comparison]:
    """The comparison of each rate; empty unless each size has one rate of its own, and all one target."""
    by_rate: dict[float, Comparison] = {}
    for comparison in comparisons:
        rates = {rate_of(run) for run in comparison.runs}
        rate = rates.pop() if len(rates) == 1 else None
        if rate is None or rate in by_rate:
            return {}
        by_rate[rate] = comparison
    targets = {tuple(c.targets) for c in comparisons}
    alike = {_beside_the_rate(run) for c in comparisons for run in c.runs}
    if len(targets) != 1 or len(targets.pop()) != 1 or len(alike) != 1:
        return {}
    return dict(sorted(by_rate.items()))


def _beside_the_rate(run: Run) -> str:
    """The cluster without its rate between nodes, and the batch, as text."""
    cluster: dict[str, Any] = dict(run.config.get("cluster") or {})
    links = dict(cluster.get("links") or {})
    links["inter"] = {**(links.get("inter") or {}), "rate_gbit": None}
    batch = (run.config.get("train") or {}).get("global_batch_size")
    return repr((sorted({**cluster, "links": links}.items()), batch))


def _bandwidth(
    study: str, model: str, dataset: str, world: str, by_rate: Mapping[float, Comparison]
) -> Bandwidth:
    everywhere = sorted(
        (arm for c in by_rate.values() for arm in c.arms), key=lambda arm: arm.runs[0].strategy != "ddp"
    )
    arms = {arm.label: arm.index for arm in everywhere}
    there = {(arm.label, rate): arm for rate, c in by_rate.items() for arm in c.arms}
    times = {place: _seconds(arm, [1.0] * len(arm.reached)) for place, arm in there.items()}
    baseline = next(iter(arms))
    floor = {
        rate: _seconds(arm, [_computing(run) for run in arm.reached])
        for (label, rate), arm in there.items()
        if label == baseline
    }
    return Bandwidth(
        study=study,
        model=model,
        dataset=dataset,
        world=world,
        arms=arms,
        rates=list(by_rate),
        lines={
            label: {rate: s for (of, rate), s in times.items() if of == label and s is not None}
            for label in arms
        },
        floor={rate: s for rate, s in floor.items() if s is not None},
        runs={place: (len(arm.counted), len(arm.reached)) for place, arm in there.items()},
        comparisons=list(by_rate.values()),
    )


def _seconds(arm: Arm, shares: Sequence[float | None]) -> float | None:
    """Geometric mean over an arm's runs of the scored time times a share; None unless all runs reached it."""
    if not arm.counted or len(arm.reached) < len(arm.counted):
        return None
    times = [run.crossing.scored_s for run in arm.reached if run.crossing]
    values = [None if share is None else t * share for t, share in zip(times, shares, strict=True)]
    (value, *others) = values
    mean = geometric_mean(values) if others else value
    return mean if mean is not None and math.isfinite(mean) and mean > 0 else None


def _computing(run: Run) -> float | None:
    """The share of training time that is neither exposed transfer nor waiting."""
    parts = run.parts_s
    if not run.train_s or not {"exposed", "waiting"} <= parts.keys():
        return None
    return max(0.0, 1 - (parts["exposed"] + parts["waiting"]) / run.train_s)


def _on_the_way(start: float, end: float, share: float) -> float:
    """`share` of the way from start to end on a logarithmic axis."""
    return start * (end / start) ** share


class BandwidthSection(Section):
    """Tables `bandwidth` and `crossings`; the figure of each study over rates."""

    order = 10
    template = """
{% for bandwidth in section.bandwidths %}
<section>
{% set workload = bandwidth.model ~ " on " ~ bandwidth.dataset %}
<h2>Which link is fast enough: {{ workload }}{{ page.of_study(bandwidth.study) }}</h2>
<ul>
{% for sentence in bandwidth.sentences %}
<li>{{ sentence }}</li>
{% endfor %}
</ul>
<div class="figures alone">
{{ page.figure(pictures[loop.index0], results.anchors(bandwidth.comparisons)) }}
</div>
<p class="soft">
{% if bandwidth.crossings %}Crossings: <a href="crossings.csv">crossings.csv</a>. {% endif %}
Arms less than 1 % apart at a rate count as equally fast there.</p>
</section>
{% endfor %}
"""

    @cached_property
    def bandwidths(self) -> list[Bandwidth]:
        return bandwidths(self.results.comparisons)

    def tables(self) -> dict[str, Rows]:
        """`bandwidth`: a row per arm and rate, `floor_s` of the baseline; `crossings`: a row per crossing."""
        return with_rows(
            bandwidth=[
                {
                    **_place(bandwidth),
                    "arm": arm,
                    "rate_gbit": rate,
                    "runs": bandwidth.runs.get((arm, rate), (0, 0))[0],
                    "reached": bandwidth.runs.get((arm, rate), (0, 0))[1],
                    "to_target_s": bandwidth.lines[arm].get(rate),
                    "floor_s": bandwidth.floor.get(rate),
                }
                for bandwidth in self.bandwidths
                for arm in bandwidth.arms
                for rate in bandwidth.rates
            ],
            crossings=[
                {
                    **_place(bandwidth),
                    "faster_below": crossing.below,
                    "faster_above": crossing.above,
                    "rate_gbit": crossing.rate_gbit,
                    "to_target_s": crossing.seconds,
                }
                for bandwidth in self.bandwidths
                for crossing in bandwidth.crossings
            ],
        )

    def plots(self) -> list[Plot]:
        return one_each(
            "bandwidth",
            self.bandwidths,
            title=TITLE,
            caption=CAPTION,
            corner=lambda bandwidth: where(bandwidth.world, ""),
            draw=draw,
            alternative=alternative,
        )


def _place(bandwidth: Bandwidth) -> dict[str, str]:
    return {name: getattr(bandwidth, name) for name in ("study", "model", "dataset", "world")}


def draw(bandwidth: Bandwidth) -> "Figure":
    """A line for each arm over all rates at which its runs reached the target."""
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D
    from matplotlib.ticker import NullLocator

    from ..plots.style import WIDTH, label_logarithmic, numbers, plain, short

    figure = Figure(figsize=(WIDTH, 4.4))
    axes = figure.subplots()
    handles: list[Line2D] = []
    for arm, index in bandwidth.arms.items():
        style, line = look(index), sorted(bandwidth.lines[arm].items())
        drawn = {
            "color": style.colour,
            "linestyle": (0, style.dashes) if style.dashes else "-",
            "marker": style.marker,
            "markersize": 5,
            "linewidth": 1.8,
        }
        if line:
            axes.plot(*zip(*line, strict=True), **drawn)
        label = plain(short(arm, 40) + ("" if line else " (target not reached)"))
        handles.append(Line2D([], [], **drawn, label=label))
    if bandwidth.floor:
        dotted = {"color": "#444444", "linewidth": 1.1, "linestyle": (0, (1.5, 2))}
        axes.plot(*zip(*sorted(bandwidth.floor.items()), strict=True), **dotted, zorder=1)
        label = plain(f"{short(bandwidth.baseline, 20)}, computing alone")
        handles.append(Line2D([], [], **dotted, label=label))
    for crossing in bandwidth.crossings:
        axes.plot(
            crossing.rate_gbit,
            crossing.seconds,
            "o",
            markersize=9,
            markerfacecolor="none",
            markeredgecolor="#1d2129",
            markeredgewidth=1.0,
            zorder=5,
        )
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xticks(bandwidth.rates)
    axes.xaxis.set_major_formatter(numbers())
    axes.xaxis.set_minor_locator(NullLocator())
    label_logarithmic(axes.yaxis)
    axes.set_xlabel("rate of a card between nodes in Gbit/s")
    axes.set_ylabel("time to target in seconds")
    figure.legend(handles=handles, loc="outside lower left", ncols=3, frameon=False, handlelength=3.5)
    return figure


def alternative(bandwidth: Bandwidth) -> str:
    """The figure in words, for readers who cannot see it."""
    arms = [f"{arm}: {_line(bandwidth.lines[arm])}" for arm in bandwidth.arms]
    floor = [f"{bandwidth.baseline}, computing alone: {_line(bandwidth.floor)}"] if bandwidth.floor else []
    return f"{TITLE} ({where(bandwidth.world, '')}). {'; '.join([*arms, *floor, *bandwidth.sentences])}."


def _line(line: dict[float, float]) -> str:
    if not line:
        return "target not reached"
    return ", ".join(f"{words.seconds(s)} at {rate:g} Gbit/s" for rate, s in sorted(line.items()))
