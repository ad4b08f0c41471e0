"""Section: whether the order of the arms depends on assumptions, from their times under each of them."""

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from .. import words
from ..data.arms import Arm, Comparison, natural
from ..data.load import Run
from ..data.means import geometric_mean
from ..data.metric import target_words
from ..plots.arm_style import look
from ..plots.pictures import Plot
from ..ranking import AS_CONFIGURED, Times, at, lasting_words, ranking_words, tiers
from ..section import Rows, Section, one_each, with_rows
from ..simulation_errors import where

if TYPE_CHECKING:
    from matplotlib.figure import Figure

TITLE = "Relative speed under assumptions"
CAPTION = (
    "Strong mark: as configured. Faint marks: under each assumption alone. The line spans them all. Dotted:"
    " the baseline, which is faster than all marks left of it."
)
TARGET = "time to target"
TRAIN = "training time"
PER_SAMPLE = "training time per sample"
NOTHING = "no common measure"
OTHER_SEEDS = "not all of the seeds that others have finished"
VALIDITY = "simulated: "  # how the label begins that says what modelled times rest on


@dataclass(frozen=True, kw_only=True)
class Measure:
    """The number compared: its name, a sentence about it, and the unit behind its seconds."""

    name: str
    note: str
    unit: str = ""


@dataclass(frozen=True, kw_only=True)
class AssumedTime:
    """An arm under one assumption: the geometric mean over `runs` runs in seconds, or None and why."""

    runs: int
    seconds: float | None
    why: str = ""


@dataclass(frozen=True, kw_only=True)
class SizeTable:
    """One size of a study. `arms`: label and index of the look, `arms[0]` is the baseline."""

    world: str
    size: str
    assumptions: list[str]
    arms: dict[str, int]
    measure: Measure
    points: dict[tuple[str, str], AssumedTime]
    runs: list[Run]
    labels: dict[str, list[str]]

    @property
    def baseline(self) -> str:
        """What the others are relative to: the first arm of ddp, or the first arm if there is none."""
        return next(iter(self.arms))

    def relative(self, arm: str, assumption: str) -> float | None:
        """How many times as fast as the baseline `arm` is; None if either has no time."""
        seconds, base = self.points[arm, assumption].seconds, self.points[self.baseline, assumption].seconds
        return None if seconds is None or base is None else base / seconds

    @cached_property
    def times(self) -> Times:
        """The arms that have a time everywhere: those that can be ranked."""
        complete: dict[str, dict[str, float]] = {}
        for arm in self.arms:
            times = {assumption: self.points[arm, assumption].seconds for assumption in self.assumptions}
            known = {assumption: value for assumption, value in times.items() if value is not None}
            if len(known) == len(times):
                complete[arm] = known
        return complete

    @property
    def ranked(self) -> bool:
        """Whether some arms have an order."""
        return len(tiers(self.times)) > 1

    @property
    def ranking(self) -> str:
        """The tiers in words, fastest first."""
        return ranking_words(self.times)

    @property
    def unranked(self) -> list[str]:
        """Why an arm is not ranked, a sentence for each that is not."""
        sentences = []
        for arm in self.arms:
            missing: dict[str, list[str]] = defaultdict(list)
            for assumption in self.assumptions:
                if why := self.points[arm, assumption].why:
                    missing[why].append(assumption)
            if missing:
                reasons = [f"{why} {at('under', assumptions)}" for why, assumptions in missing.items()]
                sentences.append(f"{arm}: {'; '.join(reasons)}")
        return sentences

    @property
    def shared_labels(self) -> list[str]:
        """What modelled times rest on, and the labels that all arms have."""
        every = dict.fromkeys(label for labels in self.labels.values() for label in labels)
        return [
            label
            for label in every
            if label.startswith(VALIDITY) or all(label in labels for labels in self.labels.values())
        ]

    def own_labels(self, arm: str) -> list[str]:
        """The other labels of an arm's runs."""
        return [label for label in self.labels[arm] if label not in self.shared_labels]


@dataclass(frozen=True, kw_only=True)
class Sensitivity:
    """A study with assumptions, in one world. `plain`: sizes that were run as configured only."""

    study: str
    model: str
    dataset: str
    world: str
    tables: list[SizeTable]
    plain: list[str]

    @property
    def runs(self) -> list[Run]:
        return [run for table in self.tables for run in table.runs]

    @property
    def extrapolated(self) -> int:
        """How many of the runs model more ranks than their cluster's numbers were ever tested for."""
        return sum(
            any(label.startswith(f"{VALIDITY}extrapolated") for label in run.labels) for run in self.runs
        )

    @property
    def lasting(self) -> str:
        """What holds over all sizes and assumptions, in words."""
        return lasting_words({table.size: table.times for table in self.tables})


def sensitivities(comparisons: Iterable[Comparison]) -> list[Sensitivity]:
    """One for each study, model, dataset and world with runs under assumptions; empty if none has."""
    groups: dict[tuple[str, str, str, str], dict[str, list[Comparison]]] = {}
    for c in comparisons:
        sizes = groups.setdefault((c.study, c.model, c.dataset, c.world), {})
        sizes.setdefault(c.size, []).append(c)
    made = []
    for (study, model, dataset, world), sizes in groups.items():
        plain = [size for size, members in sizes.items() if not any(c.assumption for c in members)]
        tables = [size_table(world, size, members) for size, members in sizes.items() if size not in plain]
        place = dict(study=study, model=model, dataset=dataset, world=world)
        if tables:
            made.append(Sensitivity(**place, tables=tables, plain=plain))
    return made


def size_table(world: str, size: str, comparisons: Sequence[Comparison]) -> SizeTable:
    """The times at one size; `comparisons` are those of its assumptions."""
    runs = [run for comparison in comparisons for run in comparison.runs]
    everywhere = [arm for comparison in comparisons for arm in comparison.arms]
    # As in the comparisons, the baseline first, also if it ran under assumptions only.
    ordered = sorted(everywhere, key=lambda arm: arm.runs[0].strategy != "ddp")
    arms = {arm.label: arm.index for arm in ordered}
    there = {(arm.label, c.assumption): arm for c in comparisons for arm in c.arms}
    assumptions = sorted({AS_CONFIGURED} | {c.assumption for c in comparisons}, key=natural)
    measure = _measure(runs)
    repeats = {_repeat(run) for run in runs}
    return SizeTable(
        world=world,
        size=size,
        assumptions=assumptions,
        arms=arms,
        measure=measure,
        points={
            (label, assumption): _point(there.get((label, assumption)), measure, repeats)
            for label in arms
            for assumption in assumptions
        },
        runs=runs,
        labels={label: _labels([arm for arm in everywhere if arm.label == label]) for label in arms},
    )


def _measure(runs: Sequence[Run]) -> Measure:
    targets = {None if run.target is None else (run.metric, run.target) for run in runs}
    if len(targets) > 1:
        return Measure(name=NOTHING, note="Runs have different targets: nothing is compared.")
    (target,) = targets
    if target is not None:
        return Measure(name=TARGET, note=f"Compared is the scored time to {target_words(*target)}.")
    done = sorted({run.samples for run in runs if run.state == "finished" and run.samples})
    if len(done) > 1:
        span = f"{done[0]:,.0f} to {done[-1]:,.0f}"
        return Measure(
            name=PER_SAMPLE,
            note=f"Compared is the training time per sample: the runs trained on {span} samples.",
            unit=" a sample",
        )
    work = f"{done[0]:,.0f} samples in every run" if done else "no run finished"
    return Measure(name=TRAIN, note=f"Compared is the training time of equal work: {work}.")


def _repeat(run: Run) -> tuple[Any, Any]:
    """Which repetition a run is: arms are compared over the same ones."""
    return run.seed, (run.config.get("run") or {}).get("repeat")


def _point(arm: Arm | None, measure: Measure, repeats: set[tuple[Any, Any]]) -> AssumedTime:
    if measure.name == NOTHING:
        return AssumedTime(runs=0, seconds=None, why="no target in common with the other runs")
    if measure.name == TARGET:
        if arm is None or not arm.counted:
            return AssumedTime(runs=0, seconds=None, why="no finished run")
        if len(arm.reached) < len(arm.counted):
            return AssumedTime(runs=len(arm.counted), seconds=None, why="not all runs reached the target")
        if {_repeat(run) for run in arm.reached} != repeats:
            return AssumedTime(runs=len(arm.reached), seconds=None, why=OTHER_SEEDS)
        return _mean([run.crossing.scored_s for run in arm.reached if run.crossing])
    if arm is None or not arm.complete:
        return AssumedTime(runs=0, seconds=None, why="no finished run")
    if {_repeat(run) for run in arm.complete} != repeats:
        return AssumedTime(runs=len(arm.complete), seconds=None, why=OTHER_SEEDS)
    return _mean([_train_s(run, measure) for run in arm.complete])


def _train_s(run: Run, measure: Measure) -> float | None:
    if measure.name == TRAIN or run.train_s is None:
        return run.train_s
    return run.train_s / run.samples if run.samples else None


def _mean(values: Sequence[float | None]) -> AssumedTime:
    (first, *others) = values
    value = geometric_mean(values) if others else first
    if value is None or not (math.isfinite(value) and value > 0):
        return AssumedTime(runs=len(values), seconds=None, why="no time recorded")
    return AssumedTime(runs=len(values), seconds=value)


def _labels(arms: Sequence[Arm]) -> list[str]:
    return list(dict.fromkeys(label for arm in arms for run in arm.runs for label in run.labels))


class SensitivitySection(Section):
    """Table `sensitivity`; for each size the table on the page and the figure."""

    order = 80
    template = """
{% set drawn = namespace(count=0) %}
{% for sensitivity in section.sensitivities %}
{% set place = "commands-assumed-" ~ loop.index %}
<section>
<h2>Does the ranking depend on assumptions? {{ page.workload(sensitivity) }}</h2>
{% set number = words.count(sensitivity.runs | length, "run") %}
{% if sensitivity.extrapolated %}
<p><strong>Extrapolated: {{ sensitivity.extrapolated }} of {{ number }}</strong> go far beyond what was
compared with measured times; the labels beside each table say how far.</p>
{% endif %}
<p>Every arm ran as configured and again under each assumption, one at a time. Two arms are ordered only where
the order is the same at all these points, by at least 1 % of the time.</p>
<p>{{ sensitivity.lasting }}</p>
{% if sensitivity.plain %}
{% set sizes = sensitivity.plain | map("default", "runs without a size", true) | list %}
<p class="soft">Run as configured only, so nothing is known of their ranking: {{ words.listed(sizes) }}.</p>
{% endif %}
{% for table in sensitivity.tables %}
{% if table.size %}
<h3 class="size">{{ table.size }}</h3>
{% endif %}
{% if table.ranked %}
<p>Fastest first: <strong>{{ table.ranking }}</strong>.</p>
{% else %}
<p>{{ table.ranking[0] | upper }}{{ table.ranking[1:] }}.</p>
{% endif %}
{% if table.unranked %}
<p class="soft">Not ranked:</p>
<ul class="soft">
{% for sentence in table.unranked %}
<li>{{ sentence }}</li>
{% endfor %}
</ul>
{% endif %}
<div class="wide" role="region" tabindex="0"
aria-label="Arms under assumptions{{ ", " ~ table.size if table.size }}">
<table class="sortable">
<caption>{{ table.measure.note }} The first column of numbers is that of {{ table.baseline }}; the others
say how many times as fast an arm is, geometric means where there are several runs.
{% if table.shared_labels %}<br>{{ page.chips(table.shared_labels) }}{% endif %}</caption>
<thead><tr><th scope="col">Assumption</th>
{% for arm, index in table.arms.items() %}
<th scope="col">{{ swatch(index) }}{{ arm }}{% if loop.first %} (time{{ table.measure.unit }}){% endif %}
{% if table.own_labels(arm) %}<br>{{ page.chips(table.own_labels(arm)) }}{% endif %}</th>
{% endfor %}
</tr></thead>
<tbody>
{% for assumption in table.assumptions %}
<tr{% if not assumption %} class="arm"{% endif %}><th scope="row">{{ assumption or "as configured" }}</th>
{% for arm in table.arms %}
<td>{% if loop.first %}{{ words.seconds(table.points[arm, assumption].seconds) }}
{%- else %}{{ words.ratio(table.relative(arm, assumption)) }}{% endif %}
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
{{ page.commands(place, sensitivity.runs | groupby("strategy") | map(attribute="list") | list) }}
</section>
{% endfor %}
"""

    @cached_property
    def sensitivities(self) -> list[Sensitivity]:
        return sensitivities(self.results.comparisons)

    def tables(self) -> dict[str, Rows]:
        """`sensitivity`: a row per size, assumption and arm; `relative`: times as fast as the baseline."""
        return with_rows(
            sensitivity=[
                {
                    "study": sensitivity.study,
                    "model": sensitivity.model,
                    "dataset": sensitivity.dataset,
                    "world": sensitivity.world,
                    "size": table.size,
                    "assumption": assumption,
                    "arm": arm,
                    "runs": table.points[arm, assumption].runs,
                    "seconds": table.points[arm, assumption].seconds,
                    "relative": table.relative(arm, assumption),
                    "measure": table.measure.name,
                }
                for sensitivity in self.sensitivities
                for table in sensitivity.tables
                for assumption in table.assumptions
                for arm in table.arms
            ]
        )

    def plots(self) -> list[Plot]:
        return one_each(
            "sensitivity",
            [table for sensitivity in self.sensitivities for table in sensitivity.tables],
            title=TITLE,
            caption=CAPTION,
            corner=lambda table: where(table.world, table.size),
            draw=draw,
            alternative=alternative,
        )


def draw(table: SizeTable) -> "Figure":
    """Speed relative to the baseline, a row for each arm; the baseline itself is the dotted line."""
    from matplotlib.lines import Line2D

    from ..plots.strip_plot import strips
    from ..plots.style import numbers, plain, short

    figure, axes = strips(list(table.arms), extra=0.35)
    axes.axvline(1, color="#444444", linewidth=0.9, linestyle=(0, (2, 2)), zorder=1)
    for row, (arm, index) in enumerate(table.arms.items()):
        style = look(index)
        of_arm = speeds(table, arm)
        if not of_arm:
            axes.annotate(
                "nothing to show", (0.01, row), xycoords=("axes fraction", "data"), va="center", fontsize=8.5
            )
            continue
        axes.plot([min(of_arm.values()), max(of_arm.values())], [row, row], color=style.colour, linewidth=1.6)
        for assumption, value in of_arm.items():
            if assumption != AS_CONFIGURED:
                axes.plot(value, row, style.marker, color=style.colour, markersize=6.5, alpha=0.35)
        if AS_CONFIGURED in of_arm:
            axes.plot(
                of_arm[AS_CONFIGURED],
                row,
                style.marker,
                color=style.colour,
                markersize=9,
                markeredgecolor="white",
                zorder=4,
            )
    axes.margins(x=0.08)
    axes.set_xlabel(f"times as fast as {plain(short(table.baseline, 40))}")
    axes.xaxis.set_major_formatter(numbers())
    grey: dict[str, Any] = {"linestyle": "", "marker": "o", "color": "#50555e"}
    figure.legend(
        handles=[
            Line2D([], [], **grey, markersize=9, label="as configured"),
            Line2D([], [], **grey, markersize=6.5, alpha=0.35, label="under one assumption each"),
        ],
        loc="outside lower left",
        ncols=2,
        frameon=False,
    )
    return figure


def speeds(table: SizeTable, arm: str) -> dict[str, float]:
    """Relative speed of `arm` by assumption, where it has one."""
    relative = {assumption: table.relative(arm, assumption) for assumption in table.assumptions}
    return {assumption: value for assumption, value in relative.items() if value is not None}


def alternative(table: SizeTable) -> str:
    """The figure in words, for readers who cannot see it."""
    arms = "; ".join(f"{arm}: {_range(table, arm)}" for arm in table.arms)
    return f"{TITLE} ({where(table.world, table.size)}), times as fast as {table.baseline}. {arms}."


def _range(table: SizeTable, arm: str) -> str:
    of_arm = speeds(table, arm)
    if not of_arm:
        return "nothing to show"
    base = f"{words.ratio(of_arm[AS_CONFIGURED])} as configured, " if AS_CONFIGURED in of_arm else ""
    return f"{base}{words.ratio(min(of_arm.values()))} to {words.ratio(max(of_arm.values()))} over all"
