"""The figures of one comparison below page one: parts of the time and curves, with captions."""

import math
from collections.abc import Callable
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
MEDIANS = (
    "Line: median over runs at their first, second, … evaluation. Band: the middle half of them. ×: a run"
    " ended early. The axis begins where the arms are after a quarter of their evaluations."
)


def figures(comparison: Comparison, prefix: str) -> list[Plot]:
    """Those that `comparison` has something to show in, in reading order; `prefix` of their file names."""
    metric = comparison.metric

    def plot(
        kind: str, title: str, caption: str, table: str, tell: Callable[[Arm], str], *drawer: str
    ) -> Plot:
        corner = where(comparison.world, comparison.size)
        arms = "; ".join(f"{arm.label}: {tell(arm)}" for arm in comparison.arms)
        return Plot(
            kind=kind,
            file=f"{prefix}{kind}",
            title=title,
            caption=caption,
            table=table,
            corner=corner,
            draw=partial(_draw, comparison, *drawer),
            alternative=f"{title} ({corner}). {arms}.",
        )

    plots: list[Plot] = []
    if any(mean_parts(arm) for arm in comparison.arms):
        plots.append(plot("parts", "Where the time went", PARTS, "runs", _parts, "strip_plot", "time_parts"))
    if any(math.isfinite(metric.of(row)) for run in comparison.runs for row in run.evaluations):
        plots += [
            plot(
                f"{metric.key}_{kind}",
                f"{metric.title} against {over}",
                MEDIANS,
                "evaluations",
                _final,
                *drawer,
            )
            for kind, over, *drawer in (
                ("time", "training time", "curves", "curves", "train_s", "training time T_train in seconds"),
                ("samples", "samples", "curves", "curves", "samples", "training samples, all ranks together"),
            )
        ]
    return plots


def _draw(comparison: Comparison, module: str, function: str, *arguments: str) -> "Figure":
    """The figure that `function` in the neighbouring `module` draws; it is imported when it is drawn."""
    return getattr(import_module(f".{module}", __package__), function)(comparison, *arguments)


def _final(arm: Arm) -> str:
    finite = sorted(run.final for run in arm.runs if run.final is not None and math.isfinite(run.final))
    ends = " to ".join(dict.fromkeys(words.share(value) for value in finite[:: max(1, len(finite) - 1)]))
    return f"{words.count(len(arm.runs), 'run')}, final {arm.runs[0].judged_by.name} {ends or 'not recorded'}"


def _parts(arm: Arm) -> str:
    parts = mean_parts(arm)
    return ", ".join(f"{part} {words.seconds(value)}" for part, value in parts.items()) or "nothing recorded"
