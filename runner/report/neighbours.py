"""The same arms at the two neighbouring values of the target's grid: shares, times and ratios.

A target is one value of a grid; what holds at it alone would be luck. Source: the measuring rules (time to
accuracy), "headlines, evaluation, target, budget"; the grid is that of `runner/scoring/pilot.py`.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from ..scoring import reached
from ..scoring.pilot import Grid, grid_around
from ..scoring.ratio import Ratio
from ..scoring.reached import Reached
from . import words
from .arms import APART, Arm, Comparison
from .load import Run
from .means import geometric_mean
from .method import Method
from .reach_table import has_target, median_words, reached_words
from .target import baseline_of, budget_s, horizon_s, way

SPLITS = ("validation", "test")
CUT = "runs were stopped at the study's target"


@dataclass(frozen=True, kw_only=True)
class At:
    """One arm at one value of the grid. `found`: its way there; None where `why` says so.

    `ratio`: the baseline's time over the arm's; None for the baseline itself and where there is none.
    """

    target: float
    found: Reached | None
    ratio: Ratio | None
    why: str = ""

    @property
    def typical_s(self) -> float | None:
        """The geometric mean of the scored times in seconds, if all runs reached it."""
        return geometric_mean(self.found.seconds) if self.found and self.found.all_reached else None


@dataclass(frozen=True, kw_only=True)
class Neighbours:
    """A comparison at its target and at those beside it. `said`: how the step of the grid was found.

    `targets`: two or three, ascending, the study's own among them.
    """

    comparison: Comparison
    baseline: Arm | None
    grid: Grid
    own: float
    said: str

    @property
    def targets(self) -> list[float]:
        return [value for value in (self.grid.below, self.own, self.grid.above) if value is not None]

    @cached_property
    def lines(self) -> list[tuple[Arm, list[At]]]:
        """Each arm with runs that count, at each target; not the baseline's on a part of the schedule."""
        arms = [
            arm for arm in self.comparison.arms if arm.counted and arm.runs[0].role not in ("clock", *APART)
        ]
        how = Method(self.comparison, self.baseline) if self.baseline else None
        return [(arm, [self._at(arm, target, how) for target in self.targets]) for arm in arms]

    def _at(self, arm: Arm, target: float, how: Method | None) -> At:
        if target > self.own and _cut(arm):
            return At(target=target, found=None, ratio=None, why=CUT)
        asked = None if target == self.own else target
        held = how is not None and arm is not how.baseline
        cut = target > self.own and how is not None and _cut(how.baseline)
        return At(
            target=target,
            found=way(arm.counted, horizon_s(self.comparison), asked),
            ratio=how.to_target(arm, asked) if held and how and not cut else None,
        )


def neighbours(comparison: Comparison) -> Neighbours | None:
    """None without one target of accuracy, or where no evaluation says how many samples it was over."""
    if not has_target(comparison) or len(comparison.targets) != 1:
        return None
    own, sizes = comparison.targets[0], _split_sizes(comparison.runs)
    if sizes is None or not 0 < own <= 1 or any(run.metric != "accuracy" for run in comparison.runs):
        return None
    grid = grid_around(own, *(sizes.get(name, max(sizes.values())) for name in SPLITS))
    return Neighbours(
        comparison=comparison,
        baseline=baseline_of(comparison),
        grid=grid,
        own=own,
        said=_said(own, grid, sizes),
    )


def neighbour_rows(comparisons: Iterable[Comparison]) -> list[dict[str, Any]]:
    """One row per arm and target of the table `neighbours`."""
    found = [one for comparison in comparisons if (one := neighbours(comparison)) is not None]
    return [_row(one, arm, at) for one in found for arm, places in one.lines for at in places]


def at_words(at: At) -> list[str]:
    """The cell of the page, line by line: who reached it, when, how many times as fast as the baseline."""
    if at.found is None:
        return [at.why]
    time = median_words(at.found)
    said = [reached_words(at.found), time if at.found.rate_only else f"median {time}"]
    return [*said, words.interval(at.ratio)] if at.ratio else said


def _cut(arm: Arm) -> bool:
    """Whether a run of the arm stopped at the study's own target, so that later ones are not known."""
    return any(run.stop != "budget" for run in arm.counted)


def _split_sizes(runs: Iterable[Run]) -> dict[str, int] | None:
    """Samples by split: as recorded, else of the one that was evaluated; None where no run tells any."""
    for run in runs:
        recorded = run.summary.get("split_samples")
        told = recorded if isinstance(recorded, Mapping) else {}
        found: dict[str, int] = {}
        for name, count in (
            *((name, told.get(name)) for name in SPLITS),
            *((row.get("split"), row.get("count")) for row in run.evaluations),
        ):
            if name in SPLITS and isinstance(count, int) and count > 0:
                found.setdefault(name, count)
        if found:
            return found
    return None


def _said(own: float, grid: Grid, sizes: Mapping[str, int]) -> str:
    if len(sizes) == len(SPLITS):
        of = f"the validation split ({sizes['validation']:,} samples) and the test split ({sizes['test']:,})"
    else:
        ((name, count),) = sizes.items()
        of = f"two splits of {count:,} samples (so many has the {name} split; of the other nothing is known)"
    multiple = f"of which {own:g} is a multiple" if grid.on_it else f"({own:g} is a multiple of none)"
    return (
        f"Steps of {grid.step:g}: the smallest round number {multiple} that is at least the binomial "
        f"standard error, at {own:g}, of the difference between {of}."
    )


def _row(one: Neighbours, arm: Arm, at: At) -> dict[str, Any]:
    comparison, found, ratio = one.comparison, at.found, at.ratio
    ends = reached.wilson(found.reached, found.runs) if found else None
    return {
        **comparison.place,
        "baseline": one.baseline.label if one.baseline else None,
        "arm": arm.label,
        "target": at.target,
        "own_target": one.own,
        "step": one.grid.step,
        "on_grid": one.grid.on_it,
        "budget_s": budget_s(comparison),
        "runs": found.runs if found else len(arm.counted),
        "reached": found.reached if found else None,
        "reached_low": ends.low if ends else None,
        "reached_high": ends.high if ends else None,
        "rate_only": found.rate_only if found else None,
        "scored_median_s": reached.median_s(found) if found else None,
        "scored_geometric_mean_s": at.typical_s,
        "ratio": ratio.point if ratio else None,
        "ratio_low": ratio.low if ratio else None,
        "ratio_high": ratio.high if ratio else None,
        "ratio_bound": ratio.side if ratio else None,
        "remarks": at.why,
    }
