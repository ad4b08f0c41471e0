"""Section: what readers of a packed file read and what that cost, arm by arm; their gain over record sizes.

Reads, jumps and seconds are those of training's own readers (docs/packed.md), of all ranks together. A gain
is training's, in samples per second over the study's baseline: reading that nobody waits for gains nothing.
Source: HSGD, the experiments on contiguous access.
"""

from collections.abc import Iterable, Mapping
from functools import cached_property
from statistics import fmean
from typing import TYPE_CHECKING, Any

from .. import words
from ..data.arms import Arm, Comparison, per_sample
from ..data.load import Run
from ..data.means import over_runs
from ..plots.pictures import Plot
from ..section import Rows, Section, looks_of, one_each, with_rows
from ..simulation_errors import where
from ..statistics.welch import Times, welch
from ..target import baseline_of, study_of

if TYPE_CHECKING:
    from matplotlib.figure import Figure

TITLE = "What readers gain over the size of a record"
CAPTION = (
    "Training's samples per second over the baseline's, whose rate is the dotted line, with intervals. A gain"
    " is less waiting for data, or less work of the ranks' own cores."
)
COUNTS = ("reads", "jumps", "requested_bytes", "useful_bytes", "read_s", "checked_s", "waited_s")
Sizes = Mapping[float, tuple[Comparison, Rows]]
"""By bytes of a record, ascending: a comparison and its rows."""


def readings_of(comparisons: Iterable[Comparison]) -> list[tuple[Comparison, Rows]]:
    """All comparisons in which an arm read a packed file, with a row of table `readers` for each such arm."""
    made = [(comparison, _rows(comparison)) for comparison in comparisons if not comparison.assumption]
    return [(comparison, rows) for comparison, rows in made if rows]


def _rows(comparison: Comparison) -> Rows:
    """Means over complete runs, by `COUNTS`.

    `record_bytes`: useful bytes of a sample, to three digits: the size of encoded images is a mean;
    `still_cached`: share of the file's pages that were in the system's cache when training began, None where
    they were left as they were; `times_as_fast`: None for the baseline and below 3 runs.
    """
    read = [(arm, runs) for arm in comparison.arms if (runs := _runs(arm)) and not arm.runs[0].role]
    if not read:
        return []
    baseline, all_runs = baseline_of(comparison), [run for _, runs in read for run in runs]
    level = float(study_of(all_runs[0], "level", 0.95))
    useful = fmean(run.summary["reader"]["useful_bytes"] / run.summary["samples"] for run in all_runs)
    rows: Rows = []
    for arm, runs in read:
        rates = per_sample(baseline.complete) if baseline is not None and arm is not baseline else Times(())
        gain = welch(rates, per_sample(runs), level=level)
        cached = [run.start.still_cached for run in runs if run.start.still_cached is not None]
        rows.append(
            {
                **comparison.place,
                "arm": arm.label,
                "runs": len(runs),
                "record_bytes": float(f"{useful:.3g}"),
                "still_cached": fmean(cached) if cached else None,
                **{name: fmean(float(run.summary["reader"].get(name, 0)) for run in runs) for name in COUNTS},
                "samples_per_s": over_runs([run.samples_per_s or 0.0 for run in runs]),
                "baseline": baseline.label if baseline else None,
                "times_as_fast": gain.point if gain else None,
                "times_as_fast_low": gain.low if gain else None,
                "times_as_fast_high": gain.high if gain else None,
                "level": level,
            }
        )
    return rows


def _runs(arm: Arm) -> list[Run]:
    """The complete ones that counted what they read."""
    return [run for run in arm.complete if isinstance(run.summary.get("reader"), dict) and run.samples_per_s]


def is_cold(rows: Rows) -> bool:
    """Whether the file was dropped from the system's cache before training."""
    return any(row["still_cached"] is not None for row in rows)


def record_sizes(readings: Iterable[tuple[Comparison, Rows]]) -> list[Sizes]:
    """Of each study, model, world and state of the cache those of several sizes of records."""
    groups: dict[tuple[Any, ...], dict[float, tuple[Comparison, Rows]]] = {}
    for c, rows in readings:
        group = groups.setdefault((c.study, c.model, c.world, c.tuned, is_cold(rows)), {})
        group.setdefault(rows[0]["record_bytes"], (c, rows))
    members = [dict(sorted(group.items())) for group in groups.values() if len(group) > 1]
    return [sizes for sizes in members if gains(sizes)]


def gains(sizes: Sizes) -> dict[str, dict[float, tuple[float, float, float]]]:
    """By arm that has a gain and by bytes of a record: times as fast as the baseline, and the interval."""
    by_arm: dict[str, dict[float, tuple[float, float, float]]] = {}
    for size, (_, rows) in sizes.items():
        for row in rows:
            if row["times_as_fast"] is not None:
                ends = row["times_as_fast_low"], row["times_as_fast_high"]
                by_arm.setdefault(row["arm"], {})[size] = (row["times_as_fast"], *ends)
    return by_arm


class ReadersSection(Section):
    """Table `readers`; the figure of gains for each study with several sizes of records."""

    order = 40
    template = """
{% for comparison, rows in section.readings %}
{% set cold, base, looks = section.is_cold(rows), rows[0].baseline, section.looks_of([comparison]) %}
<section>
<h2>Reading a packed file {{ page.workload(comparison, comparison.size) }}</h2>
<div class="wide" role="region" aria-label="Reading a packed file" tabindex="0">
<table class="sortable">
<caption>Records of {{ words.size(rows[0].record_bytes) }}; means over complete runs, all ranks together. A
jump is a read that does not start where the same reader's last one ended.
{{ "The file was dropped from the system's cache before training." if cold }}
Times as fast as {{ base or "a baseline, of which there is none" }}: training, in samples/s, with
{{ "%g" | format(100 * rows[0].level) }} % intervals.</caption>
<thead><tr><th scope="col">Arm</th><th scope="col">Reads</th><th scope="col">Jumps</th>
<th scope="col">Read, used</th><th scope="col">Waited for data</th>
{% if cold %}<th scope="col">Still cached</th>{% endif %}
<th scope="col">Samples/s</th><th scope="col">Times as fast</th></tr></thead>
<tbody>
{% for row in rows %}
<tr><th scope="row">{{ swatch(looks[row.arm]) }}{{ row.arm }}</th>
<td>{{ "{:,.0f}".format(row.reads) }}</td><td>{{ "{:,.0f}".format(row.jumps) }}</td>
<td>{{ words.size(row.requested_bytes) }}, {{ words.size(row.useful_bytes) }}</td>
<td>{{ words.seconds(row.waited_s) }}</td>
{% if cold %}
<td>{% if row.still_cached is not none %}{{ "%.1f" | format(100 * row.still_cached) }} %{% endif %}</td>
{% endif %}
<td>{{ words.rate(row.samples_per_s) }}</td><td>
{%- if row.times_as_fast is not none -%}
{{ "%.3f [%.3f, %.3f]" | format(row.times_as_fast, row.times_as_fast_low, row.times_as_fast_high) }}
{%- elif row.arm == base %}1{% else %}fewer than 3 runs{% endif -%}
</td></tr>
{% endfor %}
</tbody></table></div>
</section>
{% endfor %}
{% for sizes in section.record_sizes %}
{% set comparisons = sizes.values() | map("first") | list %}
<section>
<h2>Reading over the size of a record {{ page.workload(comparisons[0]) }}</h2>
{{ page.figure(pictures[loop.index0], results.anchors(comparisons)) }}
</section>
{% endfor %}
"""
    is_cold = staticmethod(is_cold)
    looks_of = staticmethod(looks_of)

    @cached_property
    def readings(self) -> list[tuple[Comparison, Rows]]:
        return readings_of(self.results.comparisons)

    @cached_property
    def record_sizes(self) -> list[Sizes]:
        return record_sizes(self.readings)

    def tables(self) -> dict[str, Rows]:
        """`readers`: a row per arm."""
        return with_rows(readers=[row for _, rows in self.readings for row in rows])

    def plots(self) -> list[Plot]:
        return one_each(
            "readers",
            self.record_sizes,
            title=TITLE,
            caption=CAPTION,
            corner=lambda sizes: where(_first(sizes)["world"], ""),
            draw=draw,
            alternative=alternative,
        )


def _first(sizes: Sizes) -> dict[str, Any]:
    """The first row of the smallest size."""
    return next(iter(sizes.values()))[1][0]


def draw(sizes: Sizes) -> "Figure":
    """The gain of each arm with its interval, over all sizes of records."""
    from ..plots.curves import arm_lines
    from ..plots.style import short

    looks = looks_of(comparison for comparison, _ in sizes.values())
    figure, axes = arm_lines(
        {(arm, looks[arm]): by_size for arm, by_size in gains(sizes).items()},
        list(sizes),
        xlabel="bytes of a record",
        ylabel=f"times as fast as {short(_first(sizes)['baseline'], 30)}",
    )
    axes.axhline(1.0, color="#444444", linewidth=1.1, linestyle=(0, (1.5, 2)), zorder=1)
    return figure


def alternative(sizes: Sizes) -> str:
    """The figure in words, for readers who cannot see it."""
    points = [
        f"{arm} {gain:.3f} [{low:.3f}, {high:.3f}] at {words.size(size)}"
        for arm, by_size in gains(sizes).items()
        for size, (gain, low, high) in by_size.items()
    ]
    first = _first(sizes)
    return (
        f"{TITLE}, times as fast as {first['baseline']} ({where(first['world'], '')}): {', '.join(points)}."
    )
