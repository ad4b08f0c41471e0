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
from ..data.means import TIME_SHARES, share_columns, time_shares
from ..plots.arm_style import look
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
    " is less waiting for data, or less work of the ranks' own cores; readers.csv has the waiting (waited_s)."
)
COUNTS = ("reads", "jumps", "requested_bytes", "useful_bytes", "read_s", "checked_s", "waited_s")


@dataclass(frozen=True, kw_only=True)
class Reading:
    """An arm that read a packed file: arithmetic means over its complete runs of what was counted.

    `counts`: by `COUNTS`; `cached`: share of the file's pages that were in the system's cache when training
    began, None where they were left as they were; `samples_per_s`: geometric mean; `shares`: by
    `TIME_SHARES`; `gain`: samples per second over the baseline's, None for the baseline and below 3 runs.
    """

    arm: Arm
    runs: int
    counts: Mapping[str, float]
    cached: float | None
    samples_per_s: float
    shares: Mapping[str, float] | None
    gain: Ratio | None


@dataclass(frozen=True, kw_only=True)
class Readings:
    """All arms of a comparison that read a packed file; `record_bytes`: useful bytes of a sample."""

    comparison: Comparison
    record_bytes: float
    level: float
    baseline: Arm | None
    lines: list[Reading]

    @property
    def cold(self) -> bool:
        """Whether the file was dropped from the system's cache before training."""
        return any(line.cached is not None for line in self.lines)


@dataclass(frozen=True, kw_only=True)
class RecordSizes:
    """A study whose sizes differ in the bytes of a record, ascending; at least two of them."""

    members: list[Readings]

    @property
    def world(self) -> str:
        return self.members[0].comparison.world

    @property
    def comparisons(self) -> list[Comparison]:
        return [readings.comparison for readings in self.members]

    @property
    def baseline(self) -> str:
        """The arm whose rate is 1."""
        baseline = self.members[0].baseline
        return baseline.label if baseline else "the baseline"

    @property
    def arms(self) -> dict[str, int]:
        """Label and index of the look of each arm that has a gain somewhere."""
        lines = [line for readings in self.members for line in readings.lines if line.gain]
        return {line.arm.label: line.arm.index for line in lines}

    def gains(self, label: str) -> dict[float, Ratio]:
        """Those of an arm, by bytes of a record."""
        return {
            readings.record_bytes: line.gain
            for readings in self.members
            for line in readings.lines
            if line.gain and line.arm.label == label
        }


def readings_of(comparisons: Iterable[Comparison]) -> list[Readings]:
    """Of all comparisons in which an arm read a packed file."""
    made = [_readings(comparison) for comparison in comparisons if not comparison.assumption]
    return [readings for readings in made if readings is not None]


def record_sizes(all_readings: Iterable[Readings]) -> list[RecordSizes]:
    """One for each study, model, world and state of the cache that has several sizes of records."""
    groups: dict[tuple[str, str, str, bool, bool], dict[float, Readings]] = {}
    for readings in all_readings:
        c = readings.comparison
        group = groups.setdefault((c.study, c.model, c.world, c.tuned, readings.cold), {})
        group.setdefault(readings.record_bytes, readings)
    members = [[group[size] for size in sorted(group)] for group in groups.values() if len(group) > 1]
    return [sizes for of_group in members if (sizes := RecordSizes(members=of_group)).arms]


def _readings(comparison: Comparison) -> Readings | None:
    read = [(arm, runs) for arm in comparison.arms if (runs := _runs(arm)) and not arm.runs[0].role]
    if not read:
        return None
    baseline = baseline_of(comparison)
    level = float(study_of(read[0][1][0], "level", 0.95))
    return Readings(
        comparison=comparison,
        record_bytes=_record_bytes([run for _, runs in read for run in runs]),
        level=level,
        baseline=baseline,
        lines=[_line(arm, runs, baseline, level) for arm, runs in read],
    )


def _line(arm: Arm, runs: Sequence[Run], baseline: Arm | None, level: float) -> Reading:
    counted = [run.summary["reader"] for run in runs]
    cached = [run.start.still_cached for run in runs if run.start.still_cached is not None]
    gain = None
    if baseline is not None and arm is not baseline:
        gain = welch(per_sample(baseline.complete), per_sample(runs), level=level)
    return Reading(
        arm=arm,
        runs=len(runs),
        counts={name: fmean(float(each.get(name, 0)) for each in counted) for name in COUNTS},
        cached=fmean(cached) if cached else None,
        samples_per_s=math.exp(-fmean(per_sample(runs).logs)),
        shares=time_shares(runs),
        gain=gain,
    )


def _runs(arm: Arm) -> list[Run]:
    """The complete ones that counted what they read."""
    return [run for run in arm.complete if isinstance(run.summary.get("reader"), dict) and run.samples_per_s]


def _record_bytes(runs: Sequence[Run]) -> float:
    """Useful bytes of a sample, to three digits: the size of encoded images is a mean."""
    each = [run.summary["reader"]["useful_bytes"] / run.summary["samples"] for run in runs]
    return float(f"{fmean(each):.3g}")


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
{% if readings.cold %}
The file was dropped from the system's cache before training.
{% else %}
The file lay where earlier reading had left it, in the system's cache or not.
{% endif %}
Times as fast as {{ readings.baseline.label if readings.baseline else "a baseline, of which there is none" }}:
training, in samples/s, with {{ "%g" | format(100 * readings.level) }} % intervals.
Shares of training time: {{ words.listed(section.parts) }}. Numbers:
<a href="readers.csv">readers.csv</a>.</caption>
<thead><tr><th scope="col">Arm</th><th scope="col">Reads</th><th scope="col">Jumps</th>
<th scope="col">Read, used</th><th scope="col">Waited for data</th>
{% if readings.cold %}<th scope="col">Still cached</th>{% endif %}
<th scope="col">Samples/s</th><th scope="col">Times as fast</th><th scope="col">Shares, %</th></tr></thead>
<tbody>
{% for line in readings.lines %}
<tr><th scope="row">{{ swatch(line.arm.index) }}{{ line.arm.label }}</th>
<td>{{ "{:,.0f}".format(line.counts.reads) }}</td><td>{{ "{:,.0f}".format(line.counts.jumps) }}</td>
<td>{{ words.size(line.counts.requested_bytes) }}, {{ words.size(line.counts.useful_bytes) }}</td>
<td>{{ words.seconds(line.counts.waited_s) }}</td>
{% if readings.cold %}
<td>
{%- if line.cached is none %}not recorded{% else %}{{ "%.1f" | format(100 * line.cached) }} %{% endif -%}
</td>
{% endif %}
<td>{{ words.rate(line.samples_per_s) }}</td><td>
{%- if line.gain %}{{ words.interval(line.gain) }}
{%- elif line.arm is sameas readings.baseline %}1{% else %}fewer than 3 runs{% endif -%}
</td><td>
{%- if line.shares -%}
{% for part in section.parts -%}
{{ " / " if not loop.first }}{{ "%.0f" | format(100 * line.shares[part]) }}
{%- endfor %}
{%- else %}not recorded{% endif -%}
</td></tr>
{% endfor %}
</tbody></table></div>
</section>
{% endfor %}
{% for sizes in section.record_sizes %}
<section>
<h2>Reading over the size of a record <span class="soft">({{ sizes.members[0].comparison.model }},
{{ words.world(sizes.world) }}{% if results.studies | length > 1 %},
{{ sizes.members[0].comparison.study }}{% endif %})
</span></h2>
{{ page.figure(pictures[loop.index0], results.anchors(sizes.comparisons)) }}
</section>
{% endfor %}
"""
    parts = TIME_SHARES

    @cached_property
    def readings(self) -> list[Readings]:
        return readings_of(self.results.comparisons)

    @cached_property
    def record_sizes(self) -> list[RecordSizes]:
        return record_sizes(self.readings)

    def tables(self) -> dict[str, Rows]:
        """`readers`: a row per arm."""
        return with_rows(
            readers=[
                {
                    **readings.comparison.place,
                    "arm": line.arm.label,
                    "runs": line.runs,
                    "record_bytes": readings.record_bytes,
                    "still_cached": line.cached,
                    **{name: line.counts[name] for name in COUNTS},
                    "samples_per_s": line.samples_per_s,
                    "baseline": readings.baseline.label if readings.baseline else None,
                    "times_as_fast": line.gain.point if line.gain else None,
                    "times_as_fast_low": line.gain.low if line.gain else None,
                    "times_as_fast_high": line.gain.high if line.gain else None,
                    "level": readings.level,
                    **share_columns(line.shares),
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
            corner=lambda sizes: where(sizes.world, ""),
            draw=draw,
            alternative=alternative,
        )


def draw(sizes: RecordSizes) -> "Figure":
    """The gain of each arm with its interval, over all sizes of records."""
    from matplotlib.figure import Figure
    from matplotlib.ticker import NullLocator

    from ..plots.style import WIDTH, numbers, plain, short

    figure = Figure(figsize=(WIDTH, 3.8))
    axes = figure.subplots()
    for arm, index in sizes.arms.items():
        style, gains = look(index), sorted(sizes.gains(arm).items())
        below = [gain.point - gain.low for _, gain in gains]
        above = [gain.high - gain.point for _, gain in gains]
        axes.errorbar(
            [record_bytes for record_bytes, _ in gains],
            [gain.point for _, gain in gains],
            yerr=[below, above],
            color=style.colour,
            linestyle=(0, style.dashes) if style.dashes else "-",
            marker=style.marker,
            markersize=5,
            linewidth=1.6,
            elinewidth=0.8,
            capsize=2,
            label=plain(short(arm, 40)),
        )
        axes.set_xscale("log")
        axes.set_xticks([record_bytes for record_bytes, _ in gains])
    axes.xaxis.set_major_formatter(numbers())
    axes.xaxis.set_minor_locator(NullLocator())
    axes.axhline(1.0, color="#444444", linewidth=1.1, linestyle=(0, (1.5, 2)), zorder=1)
    axes.set_xlabel("bytes of a record")
    axes.set_ylabel(plain(f"times as fast as {short(sizes.baseline, 30)}"))
    figure.legend(loc="outside lower left", ncols=3, frameon=False, handlelength=3.5)
    return figure


def alternative(sizes: RecordSizes) -> str:
    """The figure in words, for readers who cannot see it."""
    arms = [
        f"{arm}: "
        + ", ".join(
            f"{words.interval(gain)} at {words.size(record_bytes)}"
            for record_bytes, gain in sizes.gains(arm).items()
        )
        for arm in sizes.arms
    ]
    return f"{TITLE}, times as fast as {sizes.baseline} ({where(sizes.world, '')}). {'; '.join(arms)}."
