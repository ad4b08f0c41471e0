"""The figures of one comparison below page one: parts of the time and curves, with captions."""

import math
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from ..data.arms import Comparison
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
    metric, corner = comparison.metric, where(comparison.world, comparison.size)
    shown: list[tuple[str, str, str, str, Callable[[Comparison], Figure]]] = []
    if any(mean_parts(arm) for arm in comparison.arms):
        shown.append(("parts", "Where the time went", PARTS, "runs", _parts))
    if any(math.isfinite(metric.of(row)) for run in comparison.runs for row in run.evaluations):
        for kind, over, x in (("time", "training time", "train_s"), ("samples", "samples", "samples")):
            title = f"{metric.title} against {over}"
            shown.append((f"{metric.key}_{kind}", title, MEDIANS, "evaluations", partial(_curves, x=x)))
    arms = ", ".join(arm.label for arm in comparison.arms)
    return [
        Plot(
            file=f"{prefix}{kind}",
            title=title,
            caption=caption,
            table=table,
            corner=corner,
            draw=partial(draw, comparison),
            alternative=f"{title} ({corner}): {arms}",
        )
        for kind, title, caption, table, draw in shown
    ]


def _parts(comparison: Comparison) -> "Figure":
    from .strip_plot import time_parts

    return time_parts(comparison)


def _curves(comparison: Comparison, x: str) -> "Figure":
    from .curves import curves

    labels = {
        "train_s": "training time T_train in seconds",
        "samples": "training samples, all ranks together",
    }
    return curves(comparison, x, labels[x])
