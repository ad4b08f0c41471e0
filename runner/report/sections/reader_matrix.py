"""Section: what readers of a packed file read and what that cost, arm by arm; their gain over record sizes.

Reads, jumps and seconds are those of training's own readers (docs/packed.md), of all ranks together. A gain
is training's, in samples per second over the study's baseline: reading that nobody waits for gains nothing.
Source: HSGD, the experiments on contiguous access.
"""

from collections import defaultdict
from collections.abc import Iterable
from functools import cached_property, partial
from statistics import fmean

from matplotlib.figure import Figure

from .. import words
from ..claims.arm_speedup import level_of
from ..claims.claim_tables import ratio_columns
from ..data.arms import Arm, Comparison, per_sample, shown
from ..data.load import Run
from ..data.means import over_runs
from ..plots.curves import arm_lines
from ..plots.pictures import Plot
from ..plots.style import plain
from ..section import Rows, Section, grouped, numbered
from ..statistics.welch import welch
from ..target import baseline_of

TITLE = "What readers gain over the size of a record"
CAPTION = (
    "Training's samples per second over the baseline's, whose rate is the dotted line, with intervals. A gain"
    " is less waiting for data, or less work of the ranks' own cores. The table has reads, jumps, bytes, and"
    " seconds of reading and waiting of each arm."
)
COUNTS = ("reads", "jumps", "requested_bytes", "useful_bytes", "read_s", "checked_s", "waited_s")
Reading = tuple[Comparison, Rows]
"""A comparison in which arms read a packed file, and a row of table `readers` for each such arm."""


def _rows(comparison: Comparison) -> Rows:
    """Means over complete runs, by `COUNTS`.

    `record_bytes`: useful bytes of a sample, to three digits: the size of encoded images is a mean;
    `still_cached`: share of the file's pages that were in the system's cache when training began, None where
    they were left as they were; `times_as_fast`: None for the baseline and below 3 runs.
    """
    read = [(arm, runs) for arm in shown(comparison).arms if (runs := _runs(arm))]
    baseline, all_runs = baseline_of(comparison), [run for _, runs in read for run in runs]
    if not read:
        return []
    useful = fmean(run.summary["reader"]["useful_bytes"] / run.summary["samples"] for run in all_runs)
    rows: Rows = []
    for arm, runs in read:
        level, compared = level_of(arm), baseline if arm is not baseline else None
        gain = welch(per_sample(compared.complete), per_sample(runs), level=level) if compared else None
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
                **ratio_columns("times_as_fast", gain),
                "level": level,
            }
        )
    return rows


def _runs(arm: Arm) -> list[Run]:
    """The complete ones that counted what they read."""
    return [run for run in arm.complete if isinstance(run.summary.get("reader"), dict) and run.samples_per_s]


def _place(reading: Reading) -> tuple[str | bool, ...]:
    c, rows = reading
    return c.study, c.model, c.world, c.tuned, any(row["still_cached"] is not None for row in rows)


def gains(sizes: Iterable[Reading]) -> dict[str, dict[float, tuple[float, float, float]]]:
    """By arm that has a gain and by bytes of a record: times as fast as the baseline, and the interval."""
    by_arm: dict[str, dict[float, tuple[float, float, float]]] = defaultdict(dict)
    for row in (row for _, rows in sizes for row in rows):
        if row["times_as_fast"] is not None:
            interval = row["times_as_fast"], row["times_as_fast_low"], row["times_as_fast_high"]
            by_arm[row["arm"]][row["record_bytes"]] = interval
    return by_arm


class ReadersSection(Section):
    """Table `readers`; the figure of gains for each study that has any."""

    order = 40
    template = """
{% for sizes in section.over_sizes %}
{% set comparisons = sizes | map("first") | list %}
<section>
<h2>Reading a packed file {{ page.workload(comparisons[0]) }}</h2>
{{ page.figure(pictures[loop.index0], results.anchors(comparisons)) }}
</section>
{% endfor %}
"""

    @cached_property
    def readings(self) -> list[Reading]:
        """All comparisons in which an arm read a packed file."""
        return [(comparison, rows) for comparison in self.results.configured if (rows := _rows(comparison))]

    @cached_property
    def over_sizes(self) -> list[list[Reading]]:
        """Of each study, model, world and state of the cache those of several sizes of records, ascending."""
        groups = [
            sorted(sizes, key=lambda each: each[1][0]["record_bytes"])
            for sizes in grouped(self.readings, _place)
        ]
        return [sizes for sizes in groups if len(sizes) > 1 and gains(sizes)]

    def tables(self) -> dict[str, Rows]:
        """`readers`: a row per arm."""
        return {"readers": [row for _, rows in self.readings for row in rows]}

    def plots(self) -> list[Plot]:
        return [
            Plot(
                file=file,
                title=TITLE,
                caption=CAPTION,
                table="readers",
                corner=words.world(sizes[0][0].world),
                alternative=f"{TITLE}: {', '.join(gains(sizes))}",
                draw=(partial(draw, sizes),),
            )
            for file, sizes in numbered("readers", self.over_sizes)
        ]


def draw(sizes: list[Reading]) -> Figure:
    """The gain of each arm with its interval, over all sizes of records."""
    return arm_lines(
        gains(sizes),
        {rows[0]["record_bytes"]: comparison for comparison, rows in sizes},
        xlabel="bytes of a record",
        ylabel=f"times as fast as {plain(sizes[0][1][0]['baseline'], 30)}",
    )
