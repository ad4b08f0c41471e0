"""Section: whether the order of the arms depends on assumptions, from their times under each of them."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from .. import words
from ..data.arms import Arm, Comparison, natural
from ..data.load import Run
from ..data.means import geometric_mean
from ..plots.arm_style import colour, marker
from ..plots.pictures import Plot
from ..ranking import AS_CONFIGURED, Times, ranking_words
from ..section import Rows, Section, looks_of, one_each, with_rows
from ..simulation_errors import where

if TYPE_CHECKING:
    from matplotlib.figure import Figure

TITLE = "Relative speed under assumptions"
CAPTION = (
    "Strong mark: as configured. Faint marks: under each assumption alone. The line spans them all. Dotted:"
    " the baseline, which is faster than all marks left of it."
)
TARGET, TRAIN, PER_SAMPLE = "time to target", "training time", "training time per sample"


@dataclass(frozen=True, kw_only=True)
class SizeTable:
    """One size of a study under its assumptions. `measure`: what is compared.

    `seconds`: by arm and assumption, geometric means over runs, None where one of these is missing, did not
    finish or missed the target. `arms`: label and index of the look; the first one is the baseline.
    """

    comparison: Comparison
    assumptions: list[str]
    arms: dict[str, int]
    measure: str
    seconds: dict[str, dict[str, float | None]]
    runs: list[Run]

    @property
    def baseline(self) -> str:
        """What the others are relative to: the first arm of ddp, or the first arm if there is none."""
        return next(iter(self.arms))

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
        [_size_table(members) for members in sizes.values() if any(c.assumption for c in members)]
        for sizes in groups.values()
    ]
    return [tables for tables in made if tables]


def _size_table(comparisons: Sequence[Comparison]) -> SizeTable:
    runs = [run for comparison in comparisons for run in comparison.runs]
    arms = looks_of(comparisons)
    there = {(arm.label, c.assumption): arm for c in comparisons for arm in c.arms}
    assumptions = sorted({AS_CONFIGURED} | {c.assumption for c in comparisons}, key=natural)
    measure = _measure(runs)
    seeds = {str(run.seed) for run in runs}
    return SizeTable(
        comparison=comparisons[0],
        assumptions=assumptions,
        arms=arms,
        measure=measure,
        seconds={
            label: {name: _seconds(there.get((label, name)), measure, seeds) for name in assumptions}
            for label in arms
        },
        runs=runs,
    )


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
    times = [_time(run, measure) or 0.0 for run in runs]
    if {str(run.seed) for run in runs} != seeds or not all(time > 0 for time in times):
        return None
    return geometric_mean(times) if len(times) > 1 else times[0]


def _time(run: Run, measure: str) -> float | None:
    if measure == TARGET:
        return run.to_target_s
    if measure == TRAIN or run.train_s is None:
        return run.train_s
    return run.train_s / run.samples if run.samples else None


class SensitivitySection(Section):
    """Table `sensitivity`; for each size the table on the page and the figure."""

    order = 80
    template = """
{% set drawn = namespace(count=0) %}
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
<div class="figures alone">
{{ page.figure(pictures[drawn.count], [(place, "")]) }}
{% set drawn.count = drawn.count + 1 %}
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

    def plots(self) -> list[Plot]:
        return one_each(
            "sensitivity",
            [table for tables in self.studies for table in tables],
            title=TITLE,
            caption=CAPTION,
            corner=lambda table: where(table.comparison.world, table.comparison.size),
            draw=draw,
            alternative=alternative,
        )


def draw(table: SizeTable) -> "Figure":
    """Speed relative to the baseline, a row for each arm; the baseline itself is the dotted line."""
    from ..plots.strip_plot import strips
    from ..plots.style import numbers, plain, short

    figure, axes = strips(list(table.arms))
    axes.axvline(1, color="#444444", linewidth=0.9, linestyle=(0, (2, 2)), zorder=1)
    for row, (arm, index) in enumerate(table.arms.items()):
        speeds = table.speeds(arm)
        if speeds:
            axes.plot([min(speeds.values()), max(speeds.values())], [row, row], color=colour(index))
        for assumption, value in speeds.items():
            strong: Any = {"markersize": 9, "markeredgecolor": "white", "zorder": 4}
            faint: Any = {"markersize": 6.5, "alpha": 0.35}
            mark = strong if assumption == AS_CONFIGURED else faint
            axes.plot(value, row, marker(index), color=colour(index), **mark)
    axes.margins(x=0.08)
    axes.set_xlabel(f"times as fast as {plain(short(table.baseline, 40))}")
    axes.xaxis.set_major_formatter(numbers())
    return figure


def alternative(table: SizeTable) -> str:
    """The figure in words, for readers who cannot see it."""
    ranges = [
        f"{arm}: {words.ratio(min(speeds.values()))} to {words.ratio(max(speeds.values()))}"
        for arm in table.arms
        if (speeds := table.speeds(arm))
    ]
    place = where(table.comparison.world, table.comparison.size)
    return f"{TITLE} ({place}), times as fast as {table.baseline}. {'; '.join(ranges)}."
