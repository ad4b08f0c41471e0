"""The figure of each rank's share of the samples and of its waiting, for uneven devices and uneven shares."""

import statistics
from collections.abc import Iterable, Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, PercentFormatter

from ..data.arms import Arm, Comparison
from ..rank_times import shares, waited
from .arm_style import look
from .lanes import offsets
from .style import WIDTH, numbers, plain, wrapped

NAMED = 8  # ranks of an arm whose marks can carry their numbers


def rank_marks(comparison: Comparison) -> Figure:
    """A mark per rank and arm: at its share of the samples, and at the share of training that it waited."""
    labels = [plain(wrapped(arm.label)) for arm in comparison.arms]
    figure = Figure(figsize=(WIDTH, 0.95 + 0.62 * len(labels)))
    samples, waiting = figure.subplots(1, 2, sharey=True)
    samples.set_yticks(range(len(labels)), labels)
    samples.set_ylim(len(labels) - 0.4, -0.6)
    for lane, arm in enumerate(comparison.arms):
        _marks(samples, lane, arm, _mean_by_rank([shares(run) for run in arm.complete]), "none recorded")
        _marks(waiting, lane, arm, _mean_by_rank([waited(run) for run in arm.complete]), "nothing recorded")
    samples.axvline(1, color="#444444", linewidth=0.9, linestyle=(0, (2, 2)), zorder=1)
    samples.set_xlabel("samples of a rank,\ntimes an equal share")
    samples.xaxis.set_major_formatter(numbers())
    samples.xaxis.set_major_locator(MaxNLocator(4))
    waiting.set_xlim(left=0)
    waiting.xaxis.set_major_locator(MaxNLocator(4))
    waiting.set_xlabel("waiting for other ranks,\nshare of training time")
    waiting.xaxis.set_major_formatter(PercentFormatter(1, decimals=None))
    for axes in (samples, waiting):
        axes.grid(visible=False, axis="y")
        axes.margins(x=0.12)
    return figure


def _marks(axes: Axes, lane: int, arm: Arm, values: Sequence[float], nothing: str) -> None:
    if not values:
        axes.annotate(nothing, (0.02, lane), xycoords=("axes fraction", "data"), va="center", fontsize=8.5)
        return
    style, places = look(arm.index), [lane + offset for offset in offsets(len(values))]
    axes.plot(values, places, style.marker, color=style.colour, markersize=6, linestyle="")
    for rank, (x, y) in enumerate(zip(values, places, strict=True)):
        if len(values) <= NAMED:
            axes.annotate(
                str(rank), (x, y), xytext=(6, 0), textcoords="offset points", va="center", fontsize=7
            )


def _mean_by_rank(runs: Iterable[Sequence[float]]) -> list[float]:
    """The mean over runs for each rank; nothing if they have different numbers of ranks."""
    found = [run for run in runs if run]
    if len({len(run) for run in found}) != 1:
        return []
    return [statistics.fmean(values) for values in zip(*found, strict=True)]
