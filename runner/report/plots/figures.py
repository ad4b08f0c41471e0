"""The figures of one comparison, as files with a sentence that says what they show."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from matplotlib.figure import Figure

from .. import words
from ..data.arms import Arm, Comparison
from ..data.metric import Metric
from ..rank_times import is_uneven, shares, waited
from .byte_curves import byte_curves, so_far
from .curves import by_samples, by_time, curves
from .lanes import mean_parts, target_strip, time_parts
from .ranks import rank_marks
from .style import Drawn, drawn, where

BAND = "Bold: median over runs at their first, second, … evaluation. Band: the middle half of them."


@dataclass(frozen=True, kw_only=True)
class Plan:
    """A figure that can be drawn: `name` is its file name without ending, `table` the CSV file behind it.

    `describe` says of one arm in words what the figure shows; `applies` whether there is anything to show.
    `caption_of_many` stands in for `caption` where there are too many runs to show each.
    """

    name: str
    title: str
    caption: str
    table: str
    draw: Callable[[Comparison], Figure]
    describe: Callable[[Arm], str]
    applies: Callable[[Comparison], bool]
    caption_of_many: str = ""

    def said(self, comparison: Comparison) -> str:
        """The caption below the figure of `comparison`."""
        return self.caption_of_many if comparison.many and self.caption_of_many else self.caption


def draw(plan: Plan, comparison: Comparison) -> Drawn:
    """The figure as files; their bytes depend on the comparison alone."""
    return drawn(plan.name, lambda: plan.draw(comparison), told=where(comparison.world, comparison.size))


def alternative(plan: Plan, comparison: Comparison) -> str:
    """The figure in words, for who cannot see it."""
    told = "; ".join(f"{arm.label}: {plan.describe(arm)}" for arm in comparison.arms)
    return f"{plan.title} ({where(comparison.world, comparison.size)}). {told}."


def plans(comparison: Comparison) -> list[Plan]:
    """The figures that `comparison` has something to show in, in reading order."""
    return [plan for plan in (*_plans_of(comparison.metric), *PLANS) if plan.applies(comparison)]


def _range(values: Sequence[float | None], say: Callable[[float], str]) -> str:
    finite = [value for value in values if value is not None and math.isfinite(value)]
    if not finite:
        return "nothing recorded"
    low, high = say(min(finite)), say(max(finite))
    return low if low == high else f"{low} to {high}"


def _describe_final(arm: Arm) -> str:
    found = _range([run.final for run in arm.runs], words.share)
    return f"{words.count(len(arm.runs), 'run')}, final {_name(arm)} {found}"


def _name(arm: Arm) -> str:
    return arm.runs[0].judged_by.name


def _describe_target(arm: Arm) -> str:
    times = [run.crossing.scored_s for run in arm.reached if run.crossing]
    reached = f"{len(times)} of {len(arm.counted)} reached the target"
    return f"{reached}, in {_range(times, words.seconds)}" if times else reached


def _has_metric(comparison: Comparison) -> bool:
    rows = [row for run in comparison.runs for row in run.evaluations]
    return any(math.isfinite(comparison.metric.of(row)) for row in rows)


def _has_byte_curves(comparison: Comparison) -> bool:
    return any(math.isfinite(point.y) for run in comparison.runs for point in so_far(run))


def _describe_parts(arm: Arm) -> str:
    parts = mean_parts(arm)
    return ", ".join(f"{part} {words.seconds(value)}" for part, value in parts.items()) or "nothing recorded"


def _describe_cost(arm: Arm) -> str:
    found = [points[-1] for run in arm.runs if (points := so_far(run))]
    if not found:
        return "nothing recorded"
    finals = _range([point.y for point in found], words.share)
    return f"final {_name(arm)} {finals} for {_range([point.x for point in found], words.size)}"


def _describe_ranks(arm: Arm) -> str:
    of_rank = [value for run in arm.complete for value in shares(run)]
    waiting = [value for run in arm.complete for value in waited(run)]
    given = f"{_range(of_rank, lambda value: f'{value:.3g}')} times an equal share" if of_rank else ""
    said = f"waiting {_range(waiting, lambda value: f'{value:.1%}')} of the training time" if waiting else ""
    return ", ".join(text for text in (given, said) if text) or "nothing recorded"


def _plans_of(metric: Metric) -> tuple[Plan, ...]:
    """What shows the metric itself."""
    return (
        Plan(
            name=f"{metric.key}_time",
            title=f"{metric.title} against training time",
            caption="Thin: every run. Bold: median over runs at equal evaluations. ×: a run ended early.",
            caption_of_many=f"{BAND} ×: a run ended early.",
            table="evaluations.csv",
            draw=lambda comparison: curves(comparison, by_time, "training time T_train in seconds"),
            describe=_describe_final,
            applies=_has_metric,
        ),
        Plan(
            name=f"{metric.key}_samples",
            title=f"{metric.title} against samples",
            caption="The same curves per training sample: what a strategy costs in statistics, not in time.",
            table="evaluations.csv",
            draw=lambda comparison: curves(comparison, by_samples, "training samples, all ranks together"),
            describe=_describe_final,
            applies=_has_metric,
        ),
        Plan(
            name=f"{metric.key}_bytes",
            title=f"{metric.title} against bytes between nodes",
            caption="The same curves over the payload that all ranks had handed to collectives between nodes,"
            " so far, in training alone. Evaluations before the first such byte have no place here.",
            table="evaluations.csv",
            draw=byte_curves,
            describe=_describe_cost,
            applies=_has_byte_curves,
        ),
    )


PLANS = (  # what shows other things; they follow
    Plan(
        name="time_to_target",
        title="Time to target",
        caption="A mark per run at the scored time; the bar spans the two evaluations between which the run"
        " crossed the target. The upright line is the geometric mean, drawn only if all runs reached it.",
        table="runs.csv",
        draw=target_strip,
        describe=_describe_target,
        applies=lambda comparison: bool(comparison.targets),
    ),
    Plan(
        name="parts",
        title="Where the time went",
        caption="Training time split into parts: mean over ranks, then over an arm's finished runs."
        " Exposed: transfers that training stood still for. Waiting: for slower ranks.",
        table="runs.csv",
        draw=time_parts,
        describe=_describe_parts,
        applies=lambda comparison: any(mean_parts(arm) for arm in comparison.arms),
    ),
    Plan(
        name="ranks",
        title="Shares and waiting of each rank",
        caption="Means over an arm's finished runs, rank 0 on top. Left: samples of a rank as times an equal"
        " share, where the strategy tells; dotted: equal. Right: waiting for other ranks.",
        table="ranks.csv",
        draw=rank_marks,
        describe=_describe_ranks,
        applies=is_uneven,
    ),
)
