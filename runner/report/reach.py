"""The share of runs that reached the target by a time: a step curve for each arm."""

from collections.abc import Iterable

from matplotlib.figure import Figure

from ..scoring import reached
from .arms import Arm, Comparison
from .curves import line_of, panelled
from .look import look
from .style import numbers
from .target import budget_s, horizon_s, way


def reached_share(comparison: Comparison) -> Figure:
    """A step up at the scored time of each run; a mark where an arm's records end; the budget, if any."""
    figure, panels = panelled(comparison, "training time T_train in seconds")
    limit, horizon = budget_s(comparison), horizon_s(comparison)
    for axes, arms in panels:
        for arm in (arm for arm in arms if arm.counted):
            style, points = look(arm.index), reached.share_reached(way(arm.counted, horizon))
            axes.step(
                *zip(*points, strict=True),
                where="post",
                color=style.colour,
                linestyle=line_of(style),
                linewidth=2,
            )
            axes.plot(
                *records_end(arm, points), style.marker, color=style.colour, markersize=6.5, clip_on=False
            )
        if limit is not None:
            axes.axvline(limit, color="#444444", linewidth=0.9, linestyle=(0, (2, 2)), zorder=1)
            axes.annotate(
                "budget",
                (limit, 1),
                xycoords=("data", "axes fraction"),
                xytext=(-3, 2),
                textcoords="offset points",
                ha="right",
                va="bottom",
                fontsize=8.5,
            )
        axes.set_ylabel("share of runs")
        axes.set_ylim(-0.03, 1.03)
        axes.set_xlim(left=0)
        axes.xaxis.set_major_formatter(numbers())
    return figure


def records_end(arm: Arm, points: Iterable[tuple[float, float]]) -> tuple[float, float]:
    """Where on the curve `points` the last time lies that a counted run of `arm` recorded."""
    end = max(run.train_s or 0.0 for run in arm.counted)
    by_then = [share for time, share in points if time <= end]
    return end, by_then[-1] if by_then else 0.0
