"""The share of runs that reached the target by a time: a step curve for each arm."""

import math

from matplotlib.figure import Figure

from .arms import Arm, Comparison
from .curves import line_of, panelled
from .look import look
from .style import numbers


def reached_share(comparison: Comparison) -> Figure:
    """A step up at the scored time of each run; a mark where an arm's records end; the budget, if any."""
    figure, panels = panelled(comparison, "training time T_train in seconds")
    limit = budget_s(comparison)
    for axes, arms in panels:
        for arm in arms:
            style, points = look(arm.index), steps(arm)
            if points:
                axes.step(
                    *zip(*points, strict=True),
                    where="post",
                    color=style.colour,
                    linestyle=line_of(style),
                    linewidth=2,
                )
                axes.plot(*points[-1], style.marker, color=style.colour, markersize=6.5, clip_on=False)
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


def steps(arm: Arm) -> list[tuple[float, float]]:
    """Seconds and share of the counted runs of `arm`, from (0, 0) to its last recorded time; [] without runs.

    A run that diverged or ran out of time counts among all and never among those that reached the target.
    """
    if not arm.counted:
        return []
    times = sorted(run.crossing.scored_s for run in arm.reached if run.crossing)
    found = [(0.0, 0.0), *((time, k / len(arm.counted)) for k, time in enumerate(times, 1))]
    end = max([run.train_s or 0.0 for run in arm.counted] + times)
    return [*found, (end, found[-1][1])]


def half_s(arm: Arm) -> float | None:
    """Seconds after which half of the counted runs had reached the target; None if fewer ever did."""
    times = sorted(run.crossing.scored_s for run in arm.reached if run.crossing)
    half = math.ceil(len(arm.counted) / 2)
    return times[half - 1] if 0 < half <= len(times) else None


def budget_s(comparison: Comparison) -> float | None:
    """`train.max_seconds`, if all runs have the same."""
    found = {(run.config.get("train") or {}).get("max_seconds") for run in comparison.runs}
    (limit,) = found if len(found) == 1 else (None,)
    return float(limit) if isinstance(limit, int | float) else None
