"""Section: how far the speed of each arm, relative to the baseline's, depends on assumptions."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

from .. import words
from ..data.arms import Arm, Comparison, natural
from ..data.load import Run
from ..data.means import over_runs
from ..plots.arm_style import swatch
from ..section import Rows, Section, looks_of, with_rows

TARGET, TRAIN, PER_SAMPLE = "time to target", "training time", "training time per sample"
AS_CONFIGURED = ""  # the point that departs from no assumption


@dataclass(frozen=True, kw_only=True)
class SizeTable:
    """One size of a study under its assumptions: a comparison under each, the one as configured first."""

    comparisons: Sequence[Comparison]

    @cached_property
    def runs(self) -> list[Run]:
        return [run for comparison in self.comparisons for run in comparison.runs]

    @property
    def baseline(self) -> str:
        """What the others are relative to: the first arm of ddp, or the first arm if there is none."""
        return next(iter(looks_of(self.comparisons)))

    @cached_property
    def rows(self) -> Rows:
        """A row per assumption and arm; `relative`: the baseline's seconds over the arm's.

        `seconds`: what `measure` says; None where a run is missing, did not finish or missed the target.
        """
        measure, seeds = _measure(self.runs), {str(run.seed) for run in self.runs}
        seconds = {
            (arm.label, c.assumption): _seconds(arm, measure, seeds)
            for c in self.comparisons
            for arm in c.arms
        }
        rows: Rows = []
        for name in sorted({AS_CONFIGURED} | {c.assumption for c in self.comparisons}, key=natural):
            base = seconds.get((self.baseline, name))
            for label in looks_of(self.comparisons):
                time = seconds.get((label, name))
                relative = base / time if base and time else None
                times = {"seconds": time, "relative": relative, "measure": measure}
                rows.append({**self.comparisons[0].place, "assumption": name, "arm": label, **times})
        return rows

    def ranges(self) -> Rows:
        """The table of the page: for each arm the least and the most times as fast as the baseline."""
        shown: Rows = []
        for label, index in looks_of(self.comparisons).items():
            own = [row for row in self.rows if row["arm"] == label]
            known = [row["relative"] for row in own if row["relative"]]
            shown.append(
                {
                    "Arm": swatch(index) + label,
                    f"{own[0]['measure'].capitalize()}, as configured": words.seconds(own[0]["seconds"]),
                    "Times as fast, as configured": words.ratio(own[0]["relative"]),
                    "Least": words.ratio(min(known, default=None)),
                    "Most": words.ratio(max(known, default=None)),
                    "Assumptions": f"{len(known)} of {len(own)}",
                }
            )
        return shown


def size_tables(comparisons: Iterable[Comparison]) -> list[list[SizeTable]]:
    """Those of each study, model, dataset and world with runs under assumptions; empty if none has."""
    groups: dict[tuple[str, ...], dict[str, list[Comparison]]] = {}
    for c in comparisons:
        groups.setdefault((c.study, c.model, c.dataset, c.world), {}).setdefault(c.size, []).append(c)
    made = [
        [SizeTable(comparisons=members) for members in sizes.values() if any(c.assumption for c in members)]
        for sizes in groups.values()
    ]
    return [tables for tables in made if tables]


def _measure(runs: Sequence[Run]) -> str:
    if len({(run.metric, run.target) for run in runs}) == 1 and runs[0].target is not None:
        return TARGET
    done = {run.samples for run in runs if run.state == "finished" and run.samples}
    return PER_SAMPLE if len(done) > 1 else TRAIN


def _seconds(arm: Arm, measure: str, seeds: set[str]) -> float | None:
    """Geometric mean over an arm's runs, in `measure`; None unless it has a run of all `seeds`."""
    if measure == TARGET and len(arm.reached) < len(arm.counted):
        return None
    runs = arm.reached if measure == TARGET else arm.complete
    times = [(run.to_target_s if measure == TARGET else run.train_s) or 0.0 for run in runs]
    if measure == PER_SAMPLE:
        times = [time / run.samples if run.samples else 0.0 for time, run in zip(times, runs, strict=True)]
    if {str(run.seed) for run in runs} != seeds or not all(time > 0 for time in times):
        return None
    return over_runs(times)


class SensitivitySection(Section):
    """Table `sensitivity`; on the page the range of each arm, for each size."""

    order = 80
    template = """
{% for tables in section.studies %}
{% set arms = tables | map(attribute="runs") | sum(start=[]) | groupby("strategy") | map(attribute="list") %}
<section>
<h2>Does the order depend on assumptions? {{ page.workload(tables[0].comparisons[0]) }}</h2>
<p>Every arm ran as configured and again under each assumption, one at a time. Two arms that have a time under
all of them keep their order if their ranges, from least to most, do not overlap. Under each assumption:
<a href="sensitivity.csv">sensitivity.csv</a>.</p>
{% for table in tables %}
{% set size = table.comparisons[0].size %}
{% call page.table("Arms under assumptions" ~ (", " ~ size if size), table.ranges()) %}
{{ size ~ ". " if size }}Times as fast as {{ table.baseline }}, geometric means. Assumptions: under how many
of them, the configured ones included, both have a time.
{{ page.chips(table.runs | map(attribute="labels") | sum(start=[]) | unique) }}
{% endcall %}
{% endfor %}
{{ page.commands("commands-assumed-" ~ loop.index, arms | list) }}
</section>
{% endfor %}
"""

    @cached_property
    def studies(self) -> list[list[SizeTable]]:
        return size_tables(self.results.comparisons)

    def tables(self) -> dict[str, Rows]:
        """`sensitivity`: a row per size, assumption and arm."""
        return with_rows(
            sensitivity=[row for tables in self.studies for table in tables for row in table.rows]
        )
