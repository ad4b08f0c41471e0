"""Section: each rank's share of the samples and how long it waited, where devices or shares are uneven."""

import statistics
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from ..data.arms import Arm, Comparison, walk, who
from ..data.load import PARTS
from ..data.rank_times import by_rank, is_uneven, shares, waited
from ..plots.arm_style import look
from ..section import Rows, Section, with_rows

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

NAMED = 8  # ranks of an arm whose marks can carry their numbers


class RankSection(Section):
    """Table `ranks`. Its figure (`draw`) stands with those of each comparison."""

    def tables(self) -> dict[str, Rows]:
        """`ranks`: a row per rank of every run of an uneven comparison."""
        uneven = [comparison for comparison in self.results.configured if is_uneven(comparison)]
        return with_rows(
            ranks=[
                who(comparison, arm, run)
                | {"rank": rank, "train_s": times.get("train_s")}
                | {f"{part}_s": times.get(f"{part}_s") for part in PARTS}
                | {"times_equal_share": of_rank[rank] if (of_rank := shares(run)) else None}
                for comparison, arm, run in walk(uneven)
                for rank, times in enumerate(by_rank(run))
            ]
        )


def draw(comparison: Comparison) -> "Figure":
    """A mark per rank and arm: at its share of the samples, and at the share of training that it waited."""
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator, PercentFormatter

    from ..plots.style import WIDTH, numbers, plain, wrapped

    labels = [plain(wrapped(arm.label)) for arm in comparison.arms]
    figure = Figure(figsize=(WIDTH, 0.95 + 0.62 * len(labels)))
    samples, waiting = figure.subplots(1, 2, sharey=True)
    samples.set_yticks(range(len(labels)), labels)
    samples.set_ylim(len(labels) - 0.4, -0.6)
    for row, arm in enumerate(comparison.arms):
        _marks(samples, row, arm, _mean_by_rank([shares(run) for run in arm.complete]), "none recorded")
        _marks(waiting, row, arm, _mean_by_rank([waited(run) for run in arm.complete]), "nothing recorded")
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


def _marks(axes: "Axes", row: int, arm: Arm, values: Sequence[float], nothing: str) -> None:
    if not values:
        axes.annotate(nothing, (0.02, row), xycoords=("axes fraction", "data"), va="center", fontsize=8.5)
        return
    from ..plots.strip_plot import offsets

    style, places = look(arm.index), [row + offset for offset in offsets(len(values))]
    axes.plot(values, places, style.marker, color=style.colour, markersize=6, linestyle="")
    for rank, (x, y) in enumerate(zip(values, places, strict=True)):
        if len(values) <= NAMED:
            axes.annotate(
                str(rank), (x, y), xytext=(6, 0), textcoords="offset points", va="center", fontsize=7
            )


def _mean_by_rank(runs: Iterable[Sequence[float]]) -> list[float]:
    """The mean over runs for each rank; nothing if they have different numbers of ranks."""
    recorded = [run for run in runs if run]
    if len({len(run) for run in recorded}) != 1:
        return []
    return [statistics.fmean(values) for values in zip(*recorded, strict=True)]
