"""The figures of one comparison below page one: curves and parts of the time, with captions."""

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

PARTS = (
    "Training time split into parts: mean over ranks, then over an arm's finished runs."
    " Exposed: transfers that training stood still for. Waiting: for slower ranks."
)
TIME, SAMPLES = "training time T_train in seconds", "training samples, all ranks together"
MEDIANS = (
    "Line: median over runs at their first, second, … evaluation. Band: the middle half of them. ×: a run"
    " ended early. The axis begins where the arms are after a quarter of their evaluations."
)


def figures(comparison: Comparison, prefix: str) -> list[Plot]:
    """Those that `comparison` has something to show in, in reading order; `prefix` of their file names."""
    metric, runs = comparison.metric, comparison.runs
    plots: list[Plot] = []
    if any(mean_parts(arm) for arm in comparison.arms):
        draw = partial(_draw, "strip_plot", "time_parts", comparison)
        plots.append(_plot(comparison, prefix, "parts", draw, _parts, "Where the time went", PARTS, "runs"))
    if any(math.isfinite(metric.of(row)) for run in runs for row in run.evaluations):
        for kind, field, axis, over in (
            ("time", "train_s", TIME, "training time"),
            ("samples", "samples", SAMPLES, "samples"),
        ):
            draw = partial(_draw, "curves", "curves", comparison, field, axis)
            title, name = f"{metric.title} against {over}", f"{metric.key}_{kind}"
            plots.append(_plot(comparison, prefix, name, draw, _final, title, MEDIANS, "evaluations"))
    return plots


def _plot(
    comparison: Comparison,
    prefix: str,
    kind: str,
    draw: "Callable[[], Figure]",
    describe: Callable[[Arm], str],
    title: str,
    caption: str,
    table: str,
) -> Plot:
    """`describe` puts one arm of the figure into words."""
    corner = where(comparison.world, comparison.size)
    arms = "; ".join(f"{arm.label}: {describe(arm)}" for arm in comparison.arms)
    return Plot(
        kind=kind,
        file=f"{prefix}{kind}",
        title=title,
        caption=caption,
        table=table,
        corner=corner,
        draw=draw,
        alternative=f"{title} ({corner}). {arms}.",
    )


def _draw(module: str, function: str, comparison: Comparison, *arguments: str) -> "Figure":
    """The figure that `function` in the neighbouring `module` draws; it is imported when it is drawn."""
    return getattr(import_module(f".{module}", __package__), function)(comparison, *arguments)


def _final(arm: Arm) -> str:
    values: Sequence[float] = [run.final for run in arm.runs if run.final is not None]
    finite = sorted(value for value in values if math.isfinite(value))
    ends = (
        " to ".join(dict.fromkeys(words.share(value) for value in (finite[0], finite[-1]))) if finite else ""
    )
    return f"{words.count(len(arm.runs), 'run')}, final {arm.runs[0].judged_by.name} {ends or 'not recorded'}"


def _parts(arm: Arm) -> str:
    parts = mean_parts(arm)
    return ", ".join(f"{part} {words.seconds(value)}" for part, value in parts.items()) or "nothing recorded"
