"""Section: each comparison as configured, with facts, warnings, the headline table, figures and commands."""

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

from ...config.cluster import compared_words
from .. import simulation_errors, words
from ..claims import core_efficiency, recorded
from ..data.arms import ONE_CORE, Arm, Comparison, common_settings, own_settings, shown
from ..data.load import Run
from ..data.means import mean_parts
from ..data.metric import Metric, target_words
from ..data.rank_times import is_uneven, shares, waited
from ..plots.pictures import Plot
from ..section import Section
from . import ranks
from .headline import ArmLine, crossing_words, headline, interval_words, notes_of

if TYPE_CHECKING:
    from matplotlib.figure import Figure

BAND = "Bold: median over runs at their first, second, … evaluation. Band: the middle half of them."


def facts_of(comparison: Comparison) -> list[tuple[str, str]]:
    """World, cluster, target and so on: name and value of each."""
    runs = comparison.runs
    facts = [("World", comparison.world_in_words)]
    known = simulation_errors.reference() if comparison.world == "simulated" else None
    facts += [("How far virtual time is off", f"{_compared(runs)} {known.sentence()}")] if known else []
    facts += [("Size", comparison.size)] if comparison.size else []
    facts += [("Cluster", "; ".join(sorted({_cluster(run) for run in runs})))]
    if comparison.targets:
        facts.append(
            ("Target", "; ".join(target_words(runs[0].metric, target) for target in comparison.targets))
        )
    batches = sorted({str((run.config.get("train") or {}).get("global_batch_size")) for run in runs})
    facts.append(("Global batch", ", ".join(batches) + " samples"))
    counts = sorted({row["count"] for run in runs for row in run.evaluations if row.get("count")})
    if len(counts) == 1:
        facts.append(("JudgedClaim on", f"{counts[0]:,} samples, each once"))
    return facts


def _compared(runs: Iterable[Run]) -> str:
    """What is known of the step times of the runs' own clusters."""
    ranks = sorted({(run.config.get("cluster") or {}).get("validated_ranks") or 0 for run in runs})
    sentence = "; ".join(compared_words(count) for count in ranks)
    return f"{sentence[0].upper()}{sentence[1:]}."


def _cluster(run: Run) -> str:
    cluster = run.config.get("cluster") or {}
    nodes, ranks = cluster.get("nodes"), cluster.get("ranks_per_node")
    if isinstance(ranks, list) and len(set(ranks)) == 1:
        ranks = ranks[0]
    shape = f"× {ranks} ranks" if not isinstance(ranks, list) else f"with {' + '.join(map(str, ranks))} ranks"
    rate = ((cluster.get("links") or {}).get("inter") or {}).get("rate_gbit")
    kind = (cluster.get("device") or {}).get("kind")
    described = [f"{rate:g} Gbit/s a card between nodes"] if isinstance(rate, int | float) else []
    kinds = [kind] if isinstance(kind, str) and kind else [" and ".join(kind)] if kind else []
    return ", ".join([f"{nodes} nodes {shape}", *described, *kinds])


def warnings_of(everything: Comparison) -> list[str]:
    """What makes the arms of a comparison less than comparable, those that stand apart beside."""
    warnings = [recorded.busy_warning(everything), core_efficiency.warning(everything)]
    comparison = shown(everything)
    train = [run.config.get("train") or {} for run in comparison.runs]
    cadences = {str(t.get("eval_every_samples")) for t in train}
    phases: dict[Any, set[str]] = defaultdict(set)
    for run, t in zip(comparison.runs, train, strict=True):
        phases[run.block].add(str(t.get("eval_phase")))
    if len(cadences) > 1 or any(len(values) > 1 for values in phases.values()):
        warnings.append("Runs evaluate at different intervals: their crossings are not known equally well.")
    if len(comparison.targets) > 1:
        warnings.append("Runs have different targets: their times to target are not comparable.")
    digests = [run.summary.get("digests") or {} for run in comparison.runs if run.summary]
    if len({str(known.get("files")) for known in digests}) > 1:
        warnings.append("Runs have different files of the data set (digests.files): they learn other things.")
    before = [run.crossing.index + 1 for run in comparison.runs if run.crossing]
    if before and min(before) < 20:
        warnings.append(
            f"Few evaluations up to the crossing ({min(before)} in the shortest case; 20 are wanted before a"
            " verdict on time to target): the interval of each crossing is wide."
        )
    return [warning for warning in warnings if warning]


class ComparisonSection(Section):
    """The block of each comparison; `headline.py`, `ranks.py` and `runs.py` write the tables behind it."""

    order = 70
    template = '{% include "comparisons.html.j2" %}'
    crossing_words = staticmethod(crossing_words)
    interval_words = staticmethod(interval_words)
    notes_of = staticmethod(notes_of)

    @property
    def with_ratios(self) -> list[Comparison]:
        return [speedups.comparison for speedups in self.results.speedups]

    @cached_property
    def blocks(self) -> list["ComparisonBlock"]:
        """One for each comparison as configured."""
        blocks, first = [], 0
        for comparison, title in zip(self.results.configured, self.results.titles, strict=True):
            block = ComparisonBlock(comparison, title, first)
            first += len(block.figures)
            blocks.append(block)
        return blocks

    def plots(self) -> list[Plot]:
        several = len(self.blocks) > 1
        return [
            figure.plot(block.shown, f"{number}_" if several else "")
            for number, block in enumerate(self.blocks, 1)
            for figure in block.figures
        ]


class ComparisonBlock:
    """A comparison as the page shows it. `first`: place of its first figure among those of the section."""

    def __init__(self, comparison: Comparison, title: str, first: int) -> None:
        self.comparison, self.title = comparison, title
        self.shown = shown(comparison)
        self.figures = figures(self.shown)
        self.places = range(first, first + len(self.figures))
        self.facts = facts_of(self.shown)
        self.warnings = warnings_of(comparison)
        self.lines: list[ArmLine] = headline(self.shown)
        self.common = common_settings(comparison.runs)
        # What holds for all runs stands once above the table, not in every line.
        self.mixed = len({bool(run.timing_reasons) for run in self.shown.runs}) > 1
        self.apart = [run for run in comparison.runs if run.role == ONE_CORE]

    def settings(self) -> Iterator[tuple[Arm, dict[str, str], list[tuple[Run, dict[str, str]]]]]:
        """Each arm with its settings beyond the common ones, and each of its runs with those beyond these."""
        for arm in self.comparison.arms:
            shared = common_settings(arm.runs)
            of_arm = {key: value for key, value in shared.items() if key not in self.common}
            yield arm, of_arm, [(run, own_settings(run, shared)) for run in arm.runs]


@dataclass(frozen=True, kw_only=True)
class ComparisonFigure:
    """A figure of one comparison. `kind`: its file name without ending and prefix; `table`: its CSV file.

    `describe` puts one arm of the figure into words. `caption_of_many` stands in for `caption` where there
    are too many runs to show each.
    """

    kind: str
    title: str
    caption: str
    table: str
    draw: "Callable[[Comparison], Figure]"
    describe: Callable[[Arm], str]
    caption_of_many: str = ""

    def plot(self, comparison: Comparison, prefix: str) -> Plot:
        """The figure of `comparison`, with `prefix` before its file name."""
        corner = simulation_errors.where(comparison.world, comparison.size)
        arms = "; ".join(f"{arm.label}: {self.describe(arm)}" for arm in comparison.arms)
        return Plot(
            kind=self.kind,
            file=f"{prefix}{self.kind}",
            title=self.title,
            caption=(comparison.many and self.caption_of_many) or self.caption,
            table=self.table,
            corner=corner,
            draw=partial(self.draw, comparison),
            alternative=f"{self.title} ({corner}). {arms}.",
        )


def figures(comparison: Comparison) -> list[ComparisonFigure]:
    """The figures that `comparison` has something to show in, in reading order."""
    metric = comparison.metric
    evaluated = any(math.isfinite(metric.of(row)) for run in comparison.runs for row in run.evaluations)
    time, samples = _curves(metric)
    return [
        *([time, samples] if evaluated else []),
        *([TIME_TO_TARGET] if comparison.targets else []),
        *([TIME_PARTS] if any(mean_parts(arm) for arm in comparison.arms) else []),
        *([RANKS] if is_uneven(comparison) else []),
    ]


def _draw_curves(comparison: Comparison, x: str, label: str) -> "Figure":
    from ..plots.curves import curves

    return curves(comparison, x, label)


def _draw_target(comparison: Comparison) -> "Figure":
    from ..plots.strip_plot import target_strip

    return target_strip(comparison)


def _draw_parts(comparison: Comparison) -> "Figure":
    from ..plots.strip_plot import time_parts

    return time_parts(comparison)


def _range(values: Sequence[float | None], say: Callable[[float], str]) -> str:
    finite = [value for value in values if value is not None and math.isfinite(value)]
    if not finite:
        return "nothing recorded"
    low, high = say(min(finite)), say(max(finite))
    return low if low == high else f"{low} to {high}"


def _describe_final(arm: Arm) -> str:
    finals = _range([run.final for run in arm.runs], words.share)
    return f"{words.count(len(arm.runs), 'run')}, final {arm.runs[0].judged_by.name} {finals}"


def _describe_target(arm: Arm) -> str:
    times = [run.crossing.scored_s for run in arm.reached if run.crossing]
    reached = f"{len(times)} of {len(arm.counted)} reached the target"
    return f"{reached}, in {_range(times, words.seconds)}" if times else reached


def _describe_parts(arm: Arm) -> str:
    parts = mean_parts(arm)
    return ", ".join(f"{part} {words.seconds(value)}" for part, value in parts.items()) or "nothing recorded"


def _describe_ranks(arm: Arm) -> str:
    of_rank = [value for run in arm.complete for value in shares(run)]
    waiting = [value for run in arm.complete for value in waited(run)]
    given = f"{_range(of_rank, lambda value: f'{value:.3g}')} times an equal share" if of_rank else ""
    idle = f"waiting {_range(waiting, lambda value: f'{value:.1%}')} of the training time" if waiting else ""
    return ", ".join(text for text in (given, idle) if text) or "nothing recorded"


def _curves(metric: Metric) -> tuple[ComparisonFigure, ComparisonFigure]:
    """The metric over training time and over samples."""
    return (
        ComparisonFigure(
            kind=f"{metric.key}_time",
            title=f"{metric.title} against training time",
            caption="Thin: every run. Bold: median over runs at equal evaluations. ×: a run ended early.",
            caption_of_many=f"{BAND} ×: a run ended early.",
            table="evaluations",
            draw=partial(_draw_curves, x="train_s", label="training time T_train in seconds"),
            describe=_describe_final,
        ),
        ComparisonFigure(
            kind=f"{metric.key}_samples",
            title=f"{metric.title} against samples",
            caption="The same curves per training sample: what a strategy costs in statistics, not in time.",
            table="evaluations",
            draw=partial(_draw_curves, x="samples", label="training samples, all ranks together"),
            describe=_describe_final,
        ),
    )


TIME_TO_TARGET = ComparisonFigure(
    kind="time_to_target",
    title="Time to target",
    caption="A mark per run at the scored time; the bar spans the two evaluations between which the run"
    " crossed the target. The upright line is the geometric mean, drawn only if all runs reached it.",
    table="runs",
    draw=_draw_target,
    describe=_describe_target,
)
TIME_PARTS = ComparisonFigure(
    kind="parts",
    title="Where the time went",
    caption="Training time split into parts: mean over ranks, then over an arm's finished runs."
    " Exposed: transfers that training stood still for. Waiting: for slower ranks.",
    table="runs",
    draw=_draw_parts,
    describe=_describe_parts,
)
RANKS = ComparisonFigure(
    kind="ranks",
    title="Shares and waiting of each rank",
    caption="Means over an arm's finished runs, rank 0 on top. Left: samples of a rank as times an equal"
    " share, where the strategy tells; dotted: equal. Right: waiting for other ranks.",
    table="ranks",
    draw=ranks.draw,
    describe=_describe_ranks,
)
