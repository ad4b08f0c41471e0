"""Section: what readers of a packed file read and what that cost, arm by arm; their gain over record sizes.

Reads, jumps and seconds are those of training's own readers (docs/packed.md), of all ranks together. A gain
is training's, in samples per second over the study's baseline: reading that nobody waits for gains nothing.
Source: HSGD, the experiments on contiguous access.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from statistics import fmean
from typing import TYPE_CHECKING

from .. import words
from ..data.arms import Arm, Comparison, per_sample
from ..data.load import Run
from ..plots.pictures import Plot
from ..section import Rows, Section, one_each, with_rows
from ..simulation_errors import where
from ..statistics.welch import Ratio, welch
from ..target import baseline_of, study_of

if TYPE_CHECKING:
    from matplotlib.figure import Figure

TITLE = "What readers gain over the size of a record"
CAPTION = (
    "Training's samples per second over the baseline's, whose rate is the dotted line, with intervals. A gain"
    " is less waiting for data, or less work of the ranks' own cores."
)
COUNTS = ("reads", "jumps", "requested_bytes", "useful_bytes", "read_s", "checked_s", "waited_s")


@dataclass(frozen=True, kw_only=True)
class Reading:
    """An arm that read a packed file. `counts`: means over its complete runs, by `COUNTS`.

    `cached`: share of the file's pages that were in the system's cache when training began, None where they
    were left as they were; `gain`: in samples per second, None for the baseline and below 3 runs.
    """

    arm: Arm
    counts: Mapping[str, float]
    cached: float | None
    samples_per_s: float
    gain: Ratio | None


@dataclass(frozen=True, kw_only=True)
class Readings:
    """All arms of a comparison that read a packed file.

    `record_bytes`: useful bytes of a sample, to three digits: the size of encoded images is a mean.
    """

    comparison: Comparison
    record_bytes: float
    level: float
    baseline: str
    lines: list[Reading]

    @property
    def cold(self) -> bool:
        """Whether the file was dropped from the system's cache before training."""
        return any(line.cached is not None for line in self.lines)


def readings_of(comparisons: Iterable[Comparison]) -> list[Readings]:
    """Of all comparisons in which an arm read a packed file."""
    made = [_readings(comparison) for comparison in comparisons if not comparison.assumption]
    return [readings for readings in made if readings is not None]


def record_sizes(all_readings: Iterable[Readings]) -> list[list[Readings]]:
    """Of each study, model, world and state of the cache those of several sizes of records, ascending."""
    groups: dict[tuple[str, str, str, bool, bool], dict[float, Readings]] = {}
    for readings in all_readings:
        c = readings.comparison
        group = groups.setdefault((c.study, c.model, c.world, c.tuned, readings.cold), {})
        group.setdefault(readings.record_bytes, readings)
    members = [[group[size] for size in sorted(group)] for group in groups.values() if len(group) > 1]
    return [sizes for sizes in members if gains(sizes)]


def gains(sizes: Sequence[Readings]) -> dict[tuple[str, int], dict[float, Ratio]]:
    """The gains of each arm that has one, by bytes of a record; the arm by its label and look."""
    by_arm: dict[tuple[str, int], dict[float, Ratio]] = {}
    for readings in sizes:
        for line in readings.lines:
            if line.gain:
                by_arm.setdefault((line.arm.label, line.arm.index), {})[readings.record_bytes] = line.gain
    return by_arm


def _readings(comparison: Comparison) -> Readings | None:
    read = [(arm, runs) for arm in comparison.arms if (runs := _runs(arm)) and not arm.runs[0].role]
    if not read:
        return None
    baseline, all_runs = baseline_of(comparison), [run for _, runs in read for run in runs]
    level = float(study_of(all_runs[0], "level", 0.95))
    useful = [run.summary["reader"]["useful_bytes"] / run.summary["samples"] for run in all_runs]
    lines: list[Reading] = []
    for arm, runs in read:
        times, gain = per_sample(runs), None
        if baseline is not None and arm is not baseline:
            gain = welch(per_sample(baseline.complete), times, level=level)
        counted = [run.summary["reader"] for run in runs]
        cached = [run.start.still_cached for run in runs if run.start.still_cached is not None]
        lines.append(
            Reading(
                arm=arm,
                counts={name: fmean(float(each.get(name, 0)) for each in counted) for name in COUNTS},
                cached=fmean(cached) if cached else None,
                samples_per_s=math.exp(-fmean(times.logs)),
                gain=gain,
            )
        )
    return Readings(
        comparison=comparison,
        record_bytes=float(f"{fmean(useful):.3g}"),
        level=level,
        baseline=baseline.label if baseline else "",
        lines=lines,
    )


def _runs(arm: Arm) -> list[Run]:
    """The complete ones that counted what they read."""
    return [run for run in arm.complete if isinstance(run.summary.get("reader"), dict) and run.samples_per_s]


class ReadersSection(Section):
    """Table `readers`; the figure of gains for each study with several sizes of records."""

    order = 40
    template = """
{% for readings in section.readings %}
<section>
<h2>Reading a packed file {{ page.workload(readings.comparison, readings.comparison.size) }}</h2>
<div class="wide" role="region" aria-label="Reading a packed file" tabindex="0">
<table class="sortable">
<caption>Records of {{ words.size(readings.record_bytes) }}; means over complete runs, all ranks together. A
jump is a read that does not start where the same reader's last one ended.
{{ "The file was dropped from the system's cache before training." if readings.cold }}
Times as fast as {{ readings.baseline or "a baseline, of which there is none" }}: training, in samples/s, with
{{ "%g" | format(100 * readings.level) }} % intervals.</caption>
<thead><tr><th scope="col">Arm</th><th scope="col">Reads</th><th scope="col">Jumps</th>
<th scope="col">Read, used</th><th scope="col">Waited for data</th>
{% if readings.cold %}<th scope="col">Still cached</th>{% endif %}
<th scope="col">Samples/s</th><th scope="col">Times as fast</th></tr></thead>
<tbody>
{% for line in readings.lines %}
<tr><th scope="row">{{ swatch(line.arm.index) }}{{ line.arm.label }}</th>
<td>{{ "{:,.0f}".format(line.counts.reads) }}</td><td>{{ "{:,.0f}".format(line.counts.jumps) }}</td>
<td>{{ words.size(line.counts.requested_bytes) }}, {{ words.size(line.counts.useful_bytes) }}</td>
<td>{{ words.seconds(line.counts.waited_s) }}</td>
{% if readings.cold %}
<td>{% if line.cached is not none %}{{ "%.1f" | format(100 * line.cached) }} %{% endif %}</td>
{% endif %}
<td>{{ words.rate(line.samples_per_s) }}</td><td>
{%- if line.gain %}{{ words.interval(line.gain) }}
{%- elif line.arm.label == readings.baseline %}1{% else %}fewer than 3 runs{% endif -%}
</td></tr>
{% endfor %}
</tbody></table></div>
</section>
{% endfor %}
{% for sizes in section.record_sizes %}
<section>
<h2>Reading over the size of a record {{ page.workload(sizes[0].comparison) }}</h2>
{{ page.figure(pictures[loop.index0], results.anchors(sizes | map(attribute="comparison") | list)) }}
</section>
{% endfor %}
"""

    @cached_property
    def readings(self) -> list[Readings]:
        return readings_of(self.results.comparisons)

    @cached_property
    def record_sizes(self) -> list[list[Readings]]:
        return record_sizes(self.readings)

    def tables(self) -> dict[str, Rows]:
        """`readers`: a row per arm."""
        return with_rows(
            readers=[
                {
                    **readings.comparison.place,
                    "arm": line.arm.label,
                    "runs": len(_runs(line.arm)),
                    "record_bytes": readings.record_bytes,
                    "still_cached": line.cached,
                    **line.counts,
                    "samples_per_s": line.samples_per_s,
                    "baseline": readings.baseline or None,
                    "times_as_fast": line.gain.point if line.gain else None,
                    "times_as_fast_low": line.gain.low if line.gain else None,
                    "times_as_fast_high": line.gain.high if line.gain else None,
                    "level": readings.level,
                }
                for readings in self.readings
                for line in readings.lines
            ]
        )

    def plots(self) -> list[Plot]:
        return one_each(
            "readers",
            self.record_sizes,
            title=TITLE,
            caption=CAPTION,
            corner=lambda sizes: where(sizes[0].comparison.world, ""),
            draw=draw,
            alternative=alternative,
        )


def draw(sizes: Sequence[Readings]) -> "Figure":
    """The gain of each arm with its interval, over all sizes of records."""
    from ..plots.curves import arm_lines
    from ..plots.style import short

    figure, axes = arm_lines(
        {
            arm: {size: (gain.point, gain.low, gain.high) for size, gain in by_size.items()}
            for arm, by_size in gains(sizes).items()
        },
        [readings.record_bytes for readings in sizes],
        xlabel="bytes of a record",
        ylabel=f"times as fast as {short(sizes[0].baseline, 30)}",
    )
    axes.axhline(1.0, color="#444444", linewidth=1.1, linestyle=(0, (1.5, 2)), zorder=1)
    return figure


def alternative(sizes: Sequence[Readings]) -> str:
    """The figure in words, for readers who cannot see it."""
    points = [
        f"{label} {words.interval(gain)} at {words.size(size)}"
        for (label, _), by_size in gains(sizes).items()
        for size, gain in by_size.items()
    ]
    place = where(sizes[0].comparison.world, "")
    return f"{TITLE}, times as fast as {sizes[0].baseline} ({place}): {', '.join(points)}."
