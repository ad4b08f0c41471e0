"""Computing efficiency E = X / (cores · x₁): what a cluster's cores do together, over what one does alone.

X are an arm's samples per second, x₁ those of one process of one thread while the other cores idle
(`study.role=one_core`). 1 / E of the baseline is its headroom: how many times as fast anything on the same
cores could be. Source: HSGD, the four-arm efficiency matrix.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from ..scoring import ratio
from ..scoring.estimate import Interval
from ..scoring.ratio import Times
from . import recorded
from .arms import Arm, Comparison
from .load import Run
from .target import baseline_of, study_of

ROLE = "one_core"
FEWEST = 2  # runs; there is no mean of one
PARTS = ("compute", "data", "blocked on intra", "blocked on inter", "other")


@dataclass(frozen=True, kw_only=True)
class Efficient:
    """An arm: samples a second, efficiency with its interval (None below 3 runs), shares of training time.

    `shares`: by `PARTS`, mean over the arm's runs; None where a run has not recorded them.
    """

    arm: Arm
    samples_per_s: float
    value: float
    interval: Interval | None
    shares: Mapping[str, float] | None

    @property
    def headroom(self) -> float:
        """Times as fast as this arm; never below 1: cores that help one another's caches are no bound."""
        return max(1.0, 1 / self.value)

    @property
    def headroom_limit(self) -> float | None:
        """The upper end of its interval."""
        ends = self.interval
        return None if ends is None or ends.low <= 0 else max(1.0, 1 / ends.low)


@dataclass(frozen=True, kw_only=True)
class Matrix:
    """All arms of a comparison, the baseline among them; `alone`: samples a second of one core."""

    comparison: Comparison
    cores: int
    alone: float
    level: float
    lines: list[Efficient]
    baseline: Efficient

    def of(self, arm: Arm) -> Efficient | None:
        """The line of an arm, None if it has too few complete runs."""
        return next((line for line in self.lines if line.arm is arm), None)

    @property
    def sentence(self) -> str:
        """What the baseline leaves to be gained."""
        base, limit = self.baseline, self.baseline.headroom_limit
        upper = "" if limit is None else f" (at most {limit:.3g})"
        return (
            f"{base.arm.label} gets {base.value:.1%} of what {self.cores} cores could do, each as fast as "
            f"one alone: nothing on these cores can be more than {base.headroom:.3g} times as fast{upper}."
        )


def matrix(comparison: Comparison) -> Matrix | None:
    """None without two runs of one core and of a baseline, or where the number of cores is not recorded."""
    baseline = baseline_of(comparison)
    alone = [run for arm in comparison.arms if arm.runs[0].role == ROLE for run in _done(arm)]
    arms = [arm for arm in comparison.arms if not arm.runs[0].role and len(_done(arm)) >= FEWEST]
    if baseline is None or len(alone) < FEWEST or baseline not in arms:
        return None
    counts = [recorded.cores(run) for arm in arms for run in _done(arm)]
    if None in counts:
        return None
    cores = max(count for count in counts if count is not None)
    level = float(study_of(baseline.runs[0], "level", 0.95))
    lines = [_line(arm, alone, cores, level) for arm in arms]
    return Matrix(
        comparison=comparison,
        cores=cores,
        alone=_rate(alone),
        level=level,
        lines=lines,
        baseline=lines[arms.index(baseline)],
    )


def matrices(comparisons: Iterable[Comparison]) -> list[Matrix]:
    """Of those that have one, in their order."""
    return [found for found in map(matrix, comparisons) if found is not None]


def efficiency_rows(found: Iterable[Matrix]) -> list[dict[str, Any]]:
    """One row per arm, for `efficiency.csv`."""
    return [
        {
            "study": one.comparison.study,
            "model": one.comparison.model,
            "dataset": one.comparison.dataset,
            "world": one.comparison.world,
            "size": one.comparison.size,
            "arm": line.arm.label,
            "runs": len(_done(line.arm)),
            "cores": one.cores,
            "samples_per_s": line.samples_per_s,
            "one_core_samples_per_s": one.alone,
            "efficiency": line.value,
            "efficiency_low": line.interval.low if line.interval else None,
            "efficiency_high": line.interval.high if line.interval else None,
            "level": one.level,
            **{
                f"share_{part.replace(' ', '_')}": line.shares[part] if line.shares else None
                for part in PARTS
            },
        }
        for one in found
        for line in one.lines
    ]


def efficiency_words(line: Efficient) -> str:
    """`93.1 % [91.0, 95.2]`."""
    ends = line.interval
    interval = f" [{100 * ends.low:.1f}, {100 * ends.high:.1f}]" if ends else ""
    return f"{100 * line.value:.1f} %{interval}"


def _line(arm: Arm, alone: Sequence[Run], cores: int, level: float) -> Efficient:
    runs = _done(arm)
    found = ratio.welch(_seconds(alone), _seconds(runs), level=level)
    ends = found.interval if found else None
    return Efficient(
        arm=arm,
        samples_per_s=_rate(runs),
        value=_rate(runs) / _rate(alone) / cores,
        interval=None if ends is None else Interval(ends.low / cores, ends.high / cores),
        shares=_shares(runs),
    )


def _shares(runs: Sequence[Run]) -> dict[str, float] | None:
    each = []
    for run in runs:
        parts, blocked = run.parts_s, run.summary.get("blocked_s")
        total = sum(parts.values())
        if not isinstance(blocked, Mapping) or total <= 0:
            return None
        seconds = [
            parts.get("compute", 0.0),
            parts.get("data", 0.0),
            float(blocked.get("intra", 0.0)),
            float(blocked.get("inter", 0.0)),
        ]
        each.append([value / total for value in [*seconds, max(0.0, total - sum(seconds))]])
    return dict(zip(PARTS, map(fmean, zip(*each, strict=True)), strict=True))


def _done(arm: Arm) -> list[Run]:
    return [run for run in arm.complete if run.samples_per_s]


def _rate(runs: Sequence[Run]) -> float:
    """Geometric mean of samples a second."""
    return math.exp(-fmean(_seconds(runs).logs))


def _seconds(runs: Sequence[Run]) -> Times:
    """Seconds a sample."""
    return Times(tuple(1 / run.samples_per_s for run in runs if run.samples_per_s))
