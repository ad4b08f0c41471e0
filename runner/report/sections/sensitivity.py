"""Section: how far the speed of each arm, relative to the baseline's, depends on assumptions."""

from collections.abc import Iterable, Sequence
from functools import cached_property

from .. import words
from ..data.arms import Arm, Comparison, natural
from ..data.load import Run
from ..data.means import over_runs
from ..plots.style import swatch
from ..section import Rows, Section, grouped, looks_of

TARGET, TRAIN, PER_SAMPLE = "time to target", "training time", "training time per sample"
AS_CONFIGURED = ""  # the point that departs from no assumption


def under_assumptions(comparisons: Iterable[Comparison]) -> list[list[Comparison]]:
    """The comparisons of each study, workload, world and size that has runs under assumptions."""
    groups = grouped(comparisons, lambda comparison: tuple(comparison.place.values()))
    return [group for group in groups if any(comparison.assumption for comparison in group)]


def rows_of(comparisons: Sequence[Comparison]) -> Rows:
    """A row per assumption and arm; `relative`: the seconds of the first arm of ddp over the arm's.

    `seconds`: what `measure` says; None where a run is missing, did not finish or missed the target.
    """
    runs = [run for comparison in comparisons for run in comparison.runs]
    measure, seeds, labels = _measure(runs), {str(run.seed) for run in runs}, list(looks_of(comparisons))
    seconds = {
        (comparison.assumption, arm.label): _seconds(arm, measure, seeds)
        for comparison in comparisons
        for arm in comparison.arms
    }
    rows: Rows = []
    for name in sorted({AS_CONFIGURED, *(comparison.assumption for comparison in comparisons)}, key=natural):
        base = seconds.get((name, labels[0]))
        for label in labels:
            time = seconds.get((name, label))
            relative = base / time if base and time else None
            times = {"seconds": time, "relative": relative, "measure": measure}
            rows.append({**comparisons[0].place, "assumption": name, "arm": label, **times})
    return rows


def ranges(comparisons: Sequence[Comparison]) -> Rows:
    """The table of the page: for each arm the least and the most times as fast as the baseline."""
    shown, looks = list[dict[str, str]](), looks_of(comparisons)
    for rows in grouped(rows_of(comparisons), lambda row: row["arm"]):
        configured, known = rows[0], [row["relative"] for row in rows if row["relative"]]
        shown.append(
            {
                "Arm": swatch(looks[configured["arm"]]) + configured["arm"],
                f"{configured['measure'].capitalize()}, as configured": words.seconds(configured["seconds"]),
                "Times as fast, as configured": words.number(configured["relative"], 3),
                "Least": words.number(min(known, default=None), 3),
                "Most": words.number(max(known, default=None), 3),
                "Assumptions": f"{len(known)} of {len(rows)}",
            }
        )
    return shown


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
{% for comparisons in section.studies %}
{% set runs = comparisons | map(attribute="runs") | sum(start=[]) %}
{% set arms = runs | groupby("strategy") | map(attribute="list") | list %}
<section>
<h2>Does the order depend on assumptions? {{ page.workload(comparisons[0], comparisons[0].size) }}</h2>
<p>Every arm ran as configured and again under each assumption, one at a time. Two arms that have a time under
all of them keep their order if their ranges, from least to most, do not overlap. Under each assumption:
<a href="sensitivity.csv">sensitivity.csv</a>.</p>
{% set size = comparisons[0].size %}
{% call page.table("Arms under assumptions" ~ (", " ~ size if size), section.ranges(comparisons)) %}
Times as fast as {{ section.looks_of(comparisons) | first }}, geometric means. Assumptions: under how
many of them, the configured ones included, both have a time.
{{ page.chips(runs | map(attribute="labels") | sum(start=[]) | unique) }}
{% endcall %}
{{ page.commands("commands-assumed-" ~ loop.index, arms) }}
</section>
{% endfor %}
"""
    looks_of, ranges = staticmethod(looks_of), staticmethod(ranges)

    @cached_property
    def studies(self) -> list[list[Comparison]]:
        return under_assumptions(self.results.comparisons)

    def tables(self) -> dict[str, Rows]:
        """`sensitivity`: a row per size, assumption and arm."""
        return {"sensitivity": [row for comparisons in self.studies for row in rows_of(comparisons)]}
