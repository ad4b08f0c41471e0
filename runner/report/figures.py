"""The figures of one comparison, as SVG text with a sentence that says what they show."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from matplotlib.figure import Figure

from . import words
from .arms import Arm, Comparison
from .curves import accuracy, by_samples, by_time, curves
from .lanes import LINK_WORDS, link_bytes, mean_parts, target_strip, throughput, time_parts
from .load import Run
from .style import svg, where
from .tables import LINKS


@dataclass(frozen=True, kw_only=True)
class Plan:
    """A figure that can be drawn: `name` is its file name without ending, `table` the CSV file behind it.

    `describe` says of one arm in words what the figure shows; `applies` whether there is anything to show.
    """

    name: str
    title: str
    caption: str
    table: str
    draw: Callable[[Comparison], Figure]
    describe: Callable[[Arm], str]
    applies: Callable[[Comparison], bool]


def draw(plan: Plan, comparison: Comparison) -> str:
    """A whole SVG file; its bytes depend on the comparison alone."""
    return svg(plan.name, lambda: plan.draw(comparison), told=where(comparison.world, comparison.size))


def alternative(plan: Plan, comparison: Comparison) -> str:
    """The figure in words, for who cannot see it."""
    told = "; ".join(f"{arm.label}: {plan.describe(arm)}" for arm in comparison.arms)
    return f"{plan.title} ({where(comparison.world, comparison.size)}). {told}."


def plans(comparison: Comparison) -> list[Plan]:
    """The figures that `comparison` has something to show in, in reading order."""
    return [plan for plan in PLANS if plan.applies(comparison)]


def _range(values: Sequence[float | None], say: Callable[[float], str]) -> str:
    finite = [value for value in values if value is not None and math.isfinite(value)]
    if not finite:
        return "nothing recorded"
    low, high = say(min(finite)), say(max(finite))
    return low if low == high else f"{low} to {high}"


def _describe_accuracy(arm: Arm) -> str:
    found = _range([run.final_accuracy for run in arm.runs], words.share)
    return f"{words.count(len(arm.runs), 'run')}, final accuracy {found}"


def _describe_target(arm: Arm) -> str:
    times = [run.crossing.scored_s for run in arm.reached if run.crossing]
    reached = f"{len(times)} of {len(arm.counted)} reached the target"
    return f"{reached}, in {_range(times, words.seconds)}" if times else reached


def _describe_throughput(arm: Arm) -> str:
    return _range([run.samples_per_s for run in arm.runs], words.rate) + " samples/s"


def _has_accuracy(comparison: Comparison) -> bool:
    rows = [row for run in comparison.runs for row in run.evaluations]
    return any(math.isfinite(accuracy(row)) for row in rows)


def _has_bytes(run: Run) -> bool:
    return any(run.payload_bytes(link) is not None for link in LINKS)


def _describe_bytes(arm: Arm) -> str:
    return ", ".join(
        f"{_range([run.payload_bytes(link) for run in arm.complete], words.size)} {LINK_WORDS[link]}"
        for link in LINKS
    )


def _describe_parts(arm: Arm) -> str:
    parts = mean_parts(arm)
    return ", ".join(f"{part} {words.seconds(value)}" for part, value in parts.items()) or "nothing recorded"


PLANS = (
    Plan(
        name="accuracy_time",
        title="Accuracy against training time",
        caption="Thin: every run. Bold: median over runs at equal evaluations. ×: a run ended early.",
        table="evaluations.csv",
        draw=lambda comparison: curves(comparison, by_time, "training time T_train in seconds"),
        describe=_describe_accuracy,
        applies=_has_accuracy,
    ),
    Plan(
        name="accuracy_samples",
        title="Accuracy against samples",
        caption="The same curves per training sample: what a strategy costs in statistics, not in time.",
        table="evaluations.csv",
        draw=lambda comparison: curves(comparison, by_samples, "training samples, all ranks together"),
        describe=_describe_accuracy,
        applies=_has_accuracy,
    ),
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
        name="throughput",
        title="Throughput",
        caption="Training samples per second of T_train, one mark per run; × did not finish.",
        table="runs.csv",
        draw=throughput,
        describe=_describe_throughput,
        applies=lambda comparison: any(run.samples_per_s for run in comparison.runs),
    ),
    Plan(
        name="bytes",
        title="Bytes per link class",
        caption="Payload handed to collectives in training, summed over ranks, one mark per finished run. The"
        " scale is logarithmic; a zero has no place on it and is written out at the left edge.",
        table="runs.csv",
        draw=link_bytes,
        describe=_describe_bytes,
        applies=lambda comparison: any(_has_bytes(run) for arm in comparison.arms for run in arm.complete),
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
)
