"""Section: how far the speed of each arm, relative to the baseline's, depends on assumptions."""

from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property

from .. import words
from ..data.arms import Arm, Comparison, natural
from ..data.means import over_runs
from ..plots.style import swatch
from ..section import Rows, Section, grouped

TARGET, PER_SAMPLE = "time to target", "training time per sample"
AS_CONFIGURED = ""  # the point that departs from no assumption


def merged_arms(comparisons: Sequence[Comparison]) -> list[Arm]:
    """Every arm with its runs under all assumptions, those of ddp first: the first is the baseline."""
    by_label = grouped((arm for each in comparisons for arm in each.arms), lambda arm: arm.label)
    merged = [replace(each[0], runs=[run for arm in each for run in arm.runs]) for each in by_label]
    return sorted(merged, key=lambda arm: arm.runs[0].strategy != "ddp")


def rows_of(comparisons: Sequence[Comparison]) -> Rows:
    """A row per assumption and arm; `relative`: the seconds of the baseline over the arm's.

    `seconds`: what `measure` says; None where a run is missing, did not finish or missed the target.
    """
    arms = merged_arms(comparisons)
    runs = [run for arm in arms for run in arm.runs]
    seeds = {str(run.seed) for run in runs}
    one_target = len({(run.metric, run.target) for run in runs}) == 1
    measure = TARGET if one_target and runs[0].target is not None else PER_SAMPLE
    seconds = {
        (comparison.assumption, arm.label): _seconds(arm, measure, seeds)
        for comparison in comparisons
        for arm in comparison.arms
    }
    rows: Rows = []
    for name in sorted({AS_CONFIGURED, *(comparison.assumption for comparison in comparisons)}, key=natural):
        base = seconds.get((name, arms[0].label))
        for arm in arms:
            time = seconds.get((name, arm.label))
            relative = base / time if base and time else None
            times = {"seconds": time, "relative": relative, "measure": measure}
            rows.append({**comparisons[0].place, "assumption": name, "arm": arm.label, **times})
    return rows


def _seconds(arm: Arm, measure: str, seeds: set[str]) -> float | None:
    """Geometric mean over an arm's runs, in `measure`; None unless it has a run of all `seeds`."""
    runs = arm.counted if measure == TARGET else arm.complete
    if measure == TARGET:
        times = [run.to_target_s for run in runs]
    else:
        times = [run.train_s / run.samples if run.train_s and run.samples else None for run in runs]
    known = [time for time in times if time]
    complete = len(known) == len(times) and {str(run.seed) for run in runs} == seeds
    return over_runs(known) if complete else None


def ranges(comparisons: Sequence[Comparison]) -> Rows:
    """The table of the page: for each arm the least and the most times as fast as the baseline."""
    shown: Rows = []
    by_arm = grouped(rows_of(comparisons), lambda row: row["arm"])
    for arm, rows in zip(merged_arms(comparisons), by_arm, strict=True):
        configured, known = rows[0], [row["relative"] for row in rows if row["relative"]]
        shown.append(
            {
                "Arm": swatch(arm.index) + arm.label,
                f"{configured['measure'].capitalize()}, as configured": words.seconds(configured["seconds"]),
                "Times as fast, as configured": words.number(configured["relative"], 3),
                "Least": words.number(min(known, default=None), 3),
                "Most": words.number(max(known, default=None), 3),
                "Assumptions": f"{len(known)} of {len(rows)}",
            }
        )
    return shown


class SensitivitySection(Section):
    """Table `sensitivity`; on the page the range of each arm, for each size."""

    order = 80
    template = """
{% for comparisons in section.studies %}
{% set size, arms = comparisons[0].size, section.merged_arms(comparisons) %}
<section>
<h2>Does the order depend on assumptions? {{ page.workload(comparisons[0], size) }}</h2>
<p>Every arm ran as configured and again under each assumption, one at a time. Two arms that have a time under
all of them keep their order if their ranges, from least to most, do not overlap. Under each assumption:
<a href="sensitivity.csv">sensitivity.csv</a>.</p>
{% call page.table("Arms under assumptions" ~ (", " ~ size if size), section.ranges(comparisons)) %}
Times as fast as {{ arms[0].label }}, geometric means. Assumptions: under how many of them, the configured
ones included, both have a time.
{% set runs = arms | map(attribute="runs") | sum(start=[]) %}
{{ page.chips(runs | map(attribute="labels") | sum(start=[]) | unique) }}
{% endcall %}
{{ page.commands("commands-assumed-" ~ loop.index, arms) }}
</section>
{% endfor %}
"""
    merged_arms, ranges = staticmethod(merged_arms), staticmethod(ranges)

    @cached_property
    def studies(self) -> list[list[Comparison]]:
        """The comparisons of each study, workload, world and size that has runs under assumptions."""
        groups = grouped(self.results.comparisons, lambda comparison: tuple(comparison.place.values()))
        return [group for group in groups if any(comparison.assumption for comparison in group)]

    def tables(self) -> dict[str, Rows]:
        """`sensitivity`: a row per size, assumption and arm."""
        return {"sensitivity": [row for comparisons in self.studies for row in rows_of(comparisons)]}
