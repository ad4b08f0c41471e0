"""Section: whether the order of the arms depends on assumptions, from their times under each of them."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

from .. import words
from ..data.arms import Arm, Comparison, natural
from ..data.load import Run
from ..data.means import over_runs
from ..section import MARGIN, Rows, Section, looks_of, with_rows

TARGET, TRAIN, PER_SAMPLE = "time to target", "training time", "training time per sample"
AS_CONFIGURED = ""  # the point that departs from no assumption
Times = Mapping[str, Mapping[str, float]]
"""Seconds by arm, then by assumption; all arms have the same assumptions, AS_CONFIGURED among them."""


@dataclass(frozen=True, kw_only=True)
class SizeTable:
    """One size of a study under its assumptions: a comparison under each. `measure`: what is compared."""

    comparisons: Sequence[Comparison]
    measure: str

    @property
    def comparison(self) -> Comparison:
        """The first of them: the one as configured, if that was run."""
        return self.comparisons[0]

    @cached_property
    def runs(self) -> list[Run]:
        return [run for comparison in self.comparisons for run in comparison.runs]

    @cached_property
    def arms(self) -> dict[str, int]:
        """Label and index of the look."""
        return looks_of(self.comparisons)

    @property
    def baseline(self) -> str:
        """What the others are relative to: the first arm of ddp, or the first arm if there is none."""
        return next(iter(self.arms))

    @cached_property
    def assumptions(self) -> list[str]:
        return sorted({AS_CONFIGURED} | {c.assumption for c in self.comparisons}, key=natural)

    @cached_property
    def seconds(self) -> dict[str, dict[str, float | None]]:
        """By arm and assumption; None where a run is missing, did not finish or missed the target."""
        arms = {(arm.label, c.assumption): arm for c in self.comparisons for arm in c.arms}
        seeds = {str(run.seed) for run in self.runs}
        return {
            label: {name: _seconds(arms.get((label, name)), self.measure, seeds) for name in self.assumptions}
            for label in self.arms
        }

    def speeds(self, arm: str) -> dict[str, float]:
        """How many times as fast as the baseline `arm` is, by assumption, where both have a time."""
        bases = self.seconds[self.baseline]
        return {
            name: base / time for name, time in self.seconds[arm].items() if time and (base := bases[name])
        }

    @cached_property
    def times(self) -> Times:
        """The arms that have a time everywhere: those that can be ranked."""
        return {
            arm: {assumption: time for assumption, time in times.items() if time}
            for arm, times in self.seconds.items()
            if all(times.values())
        }


def size_tables(comparisons: Iterable[Comparison]) -> list[list[SizeTable]]:
    """Those of each study, model, dataset and world with runs under assumptions; empty if none has."""
    groups: dict[tuple[str, ...], dict[str, list[Comparison]]] = {}
    for c in comparisons:
        groups.setdefault((c.study, c.model, c.dataset, c.world), {}).setdefault(c.size, []).append(c)
    made = [
        [
            SizeTable(comparisons=members, measure=_measure([run for c in members for run in c.runs]))
            for members in sizes.values()
            if any(c.assumption for c in members)
        ]
        for sizes in groups.values()
    ]
    return [tables for tables in made if tables]


def _measure(runs: Sequence[Run]) -> str:
    if len({(run.metric, run.target) for run in runs}) == 1 and runs[0].target is not None:
        return TARGET
    done = {run.samples for run in runs if run.state == "finished" and run.samples}
    return PER_SAMPLE if len(done) > 1 else TRAIN


def _seconds(arm: Arm | None, measure: str, seeds: set[str]) -> float | None:
    """Geometric mean over an arm's runs, in `measure`; None unless it has a run of all `seeds`."""
    if arm is None or (measure == TARGET and len(arm.reached) < len(arm.counted)):
        return None
    runs = arm.reached if measure == TARGET else arm.complete
    times = [(run.to_target_s if measure == TARGET else run.train_s) or 0.0 for run in runs]
    if measure == PER_SAMPLE:
        times = [time / run.samples if run.samples else 0.0 for time, run in zip(times, runs, strict=True)]
    if {str(run.seed) for run in runs} != seeds or not all(time > 0 for time in times):
        return None
    return over_runs(times)


def tiers(times: Times) -> list[list[str]]:
    """The arms, fastest first, cut where all before are faster than all behind under every assumption."""
    arms = sorted(times, key=lambda arm: (times[arm][AS_CONFIGURED], arm))
    ranked: list[list[str]] = []
    for place, arm in enumerate(arms):
        if not any(_unordered(times, first, second) for first in arms[:place] for second in arms[place:]):
            ranked.append([arm])
        else:
            ranked[-1].append(arm)
    return ranked


def _unordered(times: Times, first: str, second: str) -> set[str]:
    """The assumptions under which `first` is not clearly faster than `second`."""
    return {name for name, time in times[first].items() if times[second][name] < MARGIN * time}


def ranking_words(times: Times) -> str:
    """The tiers, fastest first, and where arms that share one have no order."""
    if len(times) < 2:
        arms = f"only {next(iter(times))}" if times else "no arm"
        return f"no ranking: {arms} has a time under every assumption"
    ranked = [tier[0] if len(tier) == 1 else _no_order(times, tier) for tier in tiers(times)]
    return f"no ranking: {ranked[0]}" if len(ranked) == 1 else ", then ".join(ranked)


def _no_order(times: Times, tier: Sequence[str]) -> str:
    """That these arms have no order, and under which assumptions two of them turn."""
    turns = {name for pair in pairwise(tier) for name in _unordered(times, *pair)}
    named = [f"'{name}'" for name in times[tier[0]] if name in turns - {AS_CONFIGURED}]
    points = ["as configured"] * (AS_CONFIGURED in turns) + [f"under {words.listed(named)}"] * bool(named)
    why = f"it turns, or they are less than 1 % apart, {' and '.join(points)}"
    return f"no order between {words.listed(tier)}: {why}"


class SensitivitySection(Section):
    """Table `sensitivity`, on the page for each size."""

    order = 80
    template = """
{% for tables in section.studies %}
{% set place = "commands-assumed-" ~ loop.index %}
{% set runs = tables | map(attribute="runs") | sum(start=[]) %}
<section>
<h2>Does the ranking depend on assumptions? {{ page.workload(tables[0].comparison) }}</h2>
<p>Every arm ran as configured and again under each assumption, one at a time. Two arms are ordered only where
the order is the same at all these points, by at least 1 % of the time.</p>
{% for table in tables %}
{% set size = table.comparison.size %}
{% if size %}
<h3 class="size">{{ size }}</h3>
{% endif %}
<p>Fastest first: <strong>{{ section.ranking_words(table.times) }}</strong>.
{% if table.times | length < table.arms | length %}
Not ranked are arms of which a run is missing, did not finish or missed the target.
{% endif %}</p>
<div class="wide" role="region" tabindex="0" aria-label="Arms under assumptions{{ ", " ~ size if size }}">
<table class="sortable">
<caption>Compared is the {{ table.measure }}. The first column of numbers is that of {{ table.baseline }};
the others say how many times as fast an arm is, geometric means where there are several runs.
{{ page.chips(table.runs | map(attribute="labels") | sum(start=[]) | unique) }}</caption>
<thead><tr><th scope="col">Assumption</th>
{% for arm, index in table.arms.items() %}
<th scope="col">{{ swatch(index) }}{{ arm }}</th>
{% endfor %}
</tr></thead>
<tbody>
{% for assumption in table.assumptions %}
<tr{% if not assumption %} class="arm"{% endif %}><th scope="row">{{ assumption or "as configured" }}</th>
{% for arm in table.arms %}
<td>{% if loop.first %}{{ words.seconds(table.seconds[arm][assumption]) }}
{%- else %}{{ words.ratio(table.speeds(arm).get(assumption)) }}{% endif %}
</td>
{% endfor %}
</tr>
{% endfor %}
</tbody>
</table>
</div>
{% endfor %}
<h3 class="apart">Configuration</h3>
{{ page.commands(place, runs | groupby("strategy") | map(attribute="list") | list) }}
</section>
{% endfor %}
"""

    ranking_words = staticmethod(ranking_words)

    @cached_property
    def studies(self) -> list[list[SizeTable]]:
        return size_tables(self.results.comparisons)

    def tables(self) -> dict[str, Rows]:
        """`sensitivity`: a row per size, assumption and arm; `relative`: times as fast as the baseline."""
        return with_rows(
            sensitivity=[
                {
                    **table.comparison.place,
                    "assumption": assumption,
                    "arm": arm,
                    "seconds": table.seconds[arm][assumption],
                    "relative": table.speeds(arm).get(assumption),
                    "measure": table.measure,
                }
                for tables in self.studies
                for table in tables
                for assumption in table.assumptions
                for arm in table.arms
            ]
        )
