"""The figures of one comparison: curves, time to target and parts of the time, with captions."""

import math
from collections.abc import Callable, Sequence
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING

from .. import words
from ..data.arms import Arm, Comparison
from ..data.means import mean_parts
from ..simulation_errors import where
from .pictures import Plot

if TYPE_CHECKING:
    from matplotlib.figure import Figure

TIME, SAMPLES = "training time T_train in seconds", "training samples, all ranks together"
BAND = "Bold: median over runs at their first, second, … evaluation. Band: the middle half of them."
RUNS = "Thin: every run. Bold: median over runs at equal evaluations."


def figures(comparison: Comparison, prefix: str) -> list[Plot]:
    """Those that `comparison` has something to show in, in reading order; `prefix` of their file names."""
    metric, runs = comparison.metric, comparison.runs
    plot = partial(_plot, comparison, prefix)
    plots: list[Plot] = []
    if any(math.isfinite(metric.of(row)) for run in runs for row in run.evaluations):
        plots += [
            plot(
                f"{metric.key}_time",
                ("curves", "curves", "train_s", TIME),
                _final,
                f"{metric.title} against training time",
                f"{BAND if comparison.many else RUNS} ×: a run ended early.",
                table="evaluations",
            ),
            plot(
                f"{metric.key}_samples",
                ("curves", "curves", "samples", SAMPLES),
                _final,
                f"{metric.title} against samples",
                "The same curves per training sample: what a strategy costs in statistics, not in time.",
                table="evaluations",
            ),
        ]
    if comparison.targets:
        caption = (
            "A mark per run at the scored time; the bar spans the two evaluations between which the run"
            " crossed the target. The upright line is the geometric mean, drawn only if all runs reached it."
        )
        plots.append(
            plot("time_to_target", ("strip_plot", "target_strip"), _target_times, "Time to target", caption)
        )
    if any(mean_parts(arm) for arm in comparison.arms):
        caption = (
            "Training time split into parts: mean over ranks, then over an arm's finished runs."
            " Exposed: transfers that training stood still for. Waiting: for slower ranks."
        )
        plots.append(plot("parts", ("strip_plot", "time_parts"), _parts, "Where the time went", caption))
    return plots


def _plot(
    comparison: Comparison,
    prefix: str,
    kind: str,
    drawer: tuple[str, ...],
    describe: Callable[[Arm], str],
    title: str,
    caption: str,
    table: str = "runs",
) -> Plot:
    """`drawer`: module, function and further arguments. `describe` puts one arm of the figure into words."""
    corner = where(comparison.world, comparison.size)
    arms = "; ".join(f"{arm.label}: {describe(arm)}" for arm in comparison.arms)
    return Plot(
        kind=kind,
        file=f"{prefix}{kind}",
        title=title,
        caption=caption,
        table=table,
        corner=corner,
        draw=partial(_draw, *drawer[:2], comparison, *drawer[2:]),
        alternative=f"{title} ({corner}). {arms}.",
    )


def _draw(module: str, function: str, comparison: Comparison, *arguments: str) -> "Figure":
    """The figure that `function` in the neighbouring `module` draws; it is imported when it is drawn."""
    drawer = getattr(import_module(f".{module}", __package__), function)
    return drawer(comparison, *arguments)


def _range(values: Sequence[float | None], say: Callable[[float], str]) -> str:
    finite = [value for value in values if value is not None and math.isfinite(value)]
    if not finite:
        return "nothing recorded"
    low, high = say(min(finite)), say(max(finite))
    return low if low == high else f"{low} to {high}"


def _final(arm: Arm) -> str:
    finals = _range([run.final for run in arm.runs], words.share)
    return f"{words.count(len(arm.runs), 'run')}, final {arm.runs[0].judged_by.name} {finals}"


def _target_times(arm: Arm) -> str:
    times = [run.crossing.scored_s for run in arm.reached if run.crossing]
    reached = f"{len(times)} of {len(arm.counted)} reached the target"
    return f"{reached}, in {_range(times, words.seconds)}" if times else reached


def _parts(arm: Arm) -> str:
    parts = mean_parts(arm)
    return ", ".join(f"{part} {words.seconds(value)}" for part, value in parts.items()) or "nothing recorded"
