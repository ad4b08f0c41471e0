"""Time to target against the rate of the links between nodes: a line for each arm, and where two cross."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations, pairwise
from typing import Any

from . import words
from .data.arms import Arm, Comparison
from .data.load import Run
from .data.means import geometric_mean
from .ranking import MARGIN

Line = Mapping[float, float]
"""Seconds to target by rate in Gbit/s."""


@dataclass(frozen=True, kw_only=True)
class Crossing:
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
    def crossings(self) -> list[Crossing]:
        """Of all pairs of arms, by rate."""
        pairs = combinations(self.arms, 2)
        found = [one for pair in pairs for one in crossings(*pair, self.lines, self.rates)]
        return sorted(found, key=lambda one: (one.rate_gbit, one.below, one.above))

    @property
    def sentences(self) -> list[str]:
        """The crossings in words, and the arms that have no line."""
        said = [
            f"{one.below} is faster below {words.significant(one.rate_gbit)} Gbit/s, {one.above} above "
            f"({words.seconds(one.seconds)} there)"
            for one in self.crossings
        ]
        short = [arm for arm in self.arms if len(self.lines[arm]) < len(self.rates)]
        said += [f"{arm}: not all runs reached the target at every rate" for arm in short]
        return said or ["no two lines cross"]


def bandwidths(comparisons: Iterable[Comparison]) -> list[Bandwidth]:
    """One for each study, model, dataset and world with a target whose sizes differ in their rate alone."""
    groups: dict[tuple[str, str, str, str], list[Comparison]] = {}
    for c in comparisons:
        if not c.assumption:
            groups.setdefault((c.study, c.model, c.dataset, c.world), []).append(c)
    found = []
    for (study, model, dataset, world), members in groups.items():
        by_rate = _by_rate(members)
        if len(by_rate) > 1:
            found.append(_bandwidth(study, model, dataset, world, by_rate))
    return found


def crossings(one: str, other: str, lines: Mapping[str, Line], rates: Sequence[float]) -> list[Crossing]:
    """Where the lines of two arms cross, straight between neighbouring `rates` on two logarithmic axes.

    No line leads over a rate at which one of them has no time. Arms less than 1 % apart count as equally
    fast: they cross where one is clearly faster before and the other after, at the first place at which they
    are equal between.
    """
    found: list[Crossing] = []
    stretch: list[float] = []
    for rate in [*rates, math.nan]:
        if rate in lines[one] and rate in lines[other]:
            stretch.append(rate)
        else:
            found += _crossings(one, other, lines, stretch)
            stretch = []
    return found


def _crossings(one: str, other: str, lines: Mapping[str, Line], rates: Sequence[float]) -> list[Crossing]:
    """Over neighbouring rates at which both have a time."""
    first, second = lines[one], lines[other]
    ahead = {rate: math.log(second[rate] / first[rate]) for rate in rates}  # > 0: `one` is faster
    clear = [rate for rate in rates if abs(ahead[rate]) >= math.log(MARGIN)]
    found: list[Crossing] = []
    for low, high in pairwise(clear):
        if ahead[low] * ahead[high] > 0:
            continue
        between = [rate for rate in rates if low <= rate <= high]
        left, right = next((a, b) for a, b in pairwise(between) if ahead[a] * ahead[b] <= 0)
        share = ahead[left] / (ahead[left] - ahead[right])
        below, above = (one, other) if ahead[low] > 0 else (other, one)
        found.append(
            Crossing(
                below=below,
                above=above,
                rate_gbit=_on_the_way(left, right, share),
                seconds=_on_the_way(first[left], first[right], share),
            )
        )
    return found


def bandwidth_rows(found: Iterable[Bandwidth]) -> list[dict[str, Any]]:
    """One row per arm and rate. `floor_s`: of the baseline."""
    return [
        {
            "study": one.study,
            "model": one.model,
            "dataset": one.dataset,
            "world": one.world,
            "arm": arm,
            "rate_gbit": rate,
            "runs": one.runs.get((arm, rate), (0, 0))[0],
            "reached": one.runs.get((arm, rate), (0, 0))[1],
            "to_target_s": one.lines[arm].get(rate),
            "floor_s": one.floor.get(rate),
        }
        for one in found
        for arm in one.arms
        for rate in one.rates
    ]


def crossing_rows(found: Iterable[Bandwidth]) -> list[dict[str, Any]]:
    """One row per crossing."""
    return [
        {
            "study": one.study,
            "model": one.model,
            "dataset": one.dataset,
            "world": one.world,
            "faster_below": crossing.below,
            "faster_above": crossing.above,
            "rate_gbit": crossing.rate_gbit,
            "to_target_s": crossing.seconds,
        }
        for one in found
        for crossing in one.crossings
    ]


def rate_of(run: Run) -> float | None:
    """Gbit/s of a card between nodes, if the run's cluster describes one."""
    value: Any = run.config
    for key in ("cluster", "links", "inter", "rate_gbit"):
        value = value.get(key) if isinstance(value, Mapping) else None
    usable = isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < math.inf
    return float(value) if usable else None


def _by_rate(comparisons: Sequence[Comparison]) -> dict[float, Comparison]:
    """The comparison of each rate; empty unless each size has one rate of its own, and all one target."""
    found: dict[float, Comparison] = {}
    for comparison in comparisons:
        rates = {rate_of(run) for run in comparison.runs}
        rate = rates.pop() if len(rates) == 1 else None
        if rate is None or rate in found:
            return {}
        found[rate] = comparison
    targets = {tuple(c.targets) for c in comparisons}
    alike = {_beside_the_rate(run) for c in comparisons for run in c.runs}
    if len(targets) != 1 or len(targets.pop()) != 1 or len(alike) != 1:
        return {}
    return dict(sorted(found.items()))


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
