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

from .alone import FEWEST, ROLE, alone_of
from .claims import recorded
from .claims.speedups import Method, rated
from .data.arms import Arm, Comparison, per_sample
from .data.load import Run
from .split import PARTS, shares
from .statistics.ratio import Interval
from .target import baseline_of

SLOWER = "the machine was busy, or its threads are in each other's way"


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
    """All arms of a comparison, the baseline among them; `alone`: samples a second of one core.

    `left_out`: arms that have no line, and why.
    """

    comparison: Comparison
    cores: int
    alone: float
    level: float
    lines: list[Efficient]
    baseline: Efficient
    left_out: tuple[str, ...] = ()

    def of(self, arm: Arm) -> Efficient | None:
        """The line of an arm, None if it has none."""
        return next((line for line in self.lines if line.arm is arm), None)

    @property
    def no_headroom(self) -> str:
        """Why nobody's headroom is known; "" where it is: no arm may be shown to do more than all cores."""
        above = next((line for line in self.lines if line.interval and line.interval.low > 1), None)
        if above is None:
            return ""
        return (
            f"{above.arm.label} gets {efficiency_words(above)} of what {self.cores} cores could do, each as "
            "fast as one alone: the core was not alone, or did other work, and what is left to be gained is "
            "not known"
        )

    @property
    def sentence(self) -> str:
        """What the baseline leaves to be gained, and who is not in the matrix."""
        out = f" Not in the matrix: {'; '.join(self.left_out)}." if self.left_out else ""
        return (f"{self.no_headroom}." if self.no_headroom else self._headroom) + out

    @property
    def _headroom(self) -> str:
        base, limit, ends = self.baseline, self.baseline.headroom_limit, self.baseline.interval
        upper = "" if limit is None else f" (at most {limit:.3g})"
        gets = (
            f"{base.arm.label} gets {base.value:.1%} of what {self.cores} cores could do, each as fast as "
            "one alone: "
        )
        if ends is not None and ends.high * self.cores < 1:
            return f"{gets}it is slower than one of them; {SLOWER}."
        return f"{gets}nothing on these cores can be more than {base.headroom:.3g} times as fast{upper}."


def matrix(comparison: Comparison) -> Matrix | None:
    """None where `why_none` says why."""
    found = _matrix(comparison)
    return found if isinstance(found, Matrix) else None


def why_none(comparison: Comparison) -> str:
    """Why there is no matrix; "" where there is one."""
    found = _matrix(comparison)
    return "" if isinstance(found, Matrix) else found


def warning(comparison: Comparison) -> str:
    """That runs of one core lie there and give no matrix; "" where they do, or there are none."""
    asked = any(arm.runs[0].role == ROLE for arm in comparison.arms)
    return f"No computing efficiency: {why}." if asked and (why := why_none(comparison)) else ""


def cores_of(arm: Arm) -> int | None:
    """Cores that all complete runs of an arm could use; None where they differ, or one is not known."""
    counts = {recorded.cores(run) for run in rated(arm)}
    return counts.pop() if len(counts) == 1 else None


def _matrix(comparison: Comparison) -> Matrix | str:
    """The matrix, or why there is none."""
    baseline = baseline_of(comparison)
    if baseline is None:
        return "no baseline (study.baseline)"
    if len(rated(baseline)) < FEWEST:
        return f"{baseline.label} has fewer than {FEWEST} complete runs"
    cores = cores_of(baseline)
    if cores is None:
        return f"the cores of {baseline.label} are not recorded, or not the same in all runs"
    alone = alone_of(comparison, baseline, cores)
    if alone.arm is None:
        return alone.why
    arms = [arm for arm in comparison.arms if not arm.runs[0].role]
    left_out = {arm.label: why for arm in arms if (why := _left_out(arm, cores))}
    # Its plan chose how intervals are made; level and choice are the same in all of a study.
    against = Method(comparison, alone.arm)
    lines = [_line(arm, against, cores) for arm in arms if arm.label not in left_out]
    return Matrix(
        comparison=comparison,
        cores=cores,
        alone=_rate(rated(alone.arm)),
        level=against.level,
        lines=lines,
        baseline=next(line for line in lines if line.arm is baseline),
        left_out=tuple(f"{label} ({why})" for label, why in left_out.items()),
    )


def _left_out(arm: Arm, cores: int) -> str:
    if len(rated(arm)) < FEWEST:
        return f"fewer than {FEWEST} complete runs"
    own = cores_of(arm)
    if own is None:
        return "its cores are not recorded, or not the same in all runs"
    return "" if own == cores else f"{own} cores, the others {cores}"


def matrices(comparisons: Iterable[Comparison]) -> list[Matrix]:
    """Of those that have one, in their order."""
    return [found for found in map(matrix, comparisons) if found is not None]


def efficiency_rows(found: Iterable[Matrix]) -> list[dict[str, Any]]:
    """One row per arm, for `efficiency.csv`."""
    return [
        {
            **one.comparison.place,
            "arm": line.arm.label,
            "runs": len(rated(line.arm)),
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


def _line(arm: Arm, alone: Method, cores: int) -> Efficient:
    runs, found = rated(arm), alone.per_sample(arm)
    ends = found.interval if found else None
    return Efficient(
        arm=arm,
        samples_per_s=_rate(runs),
        value=_rate(runs) / _rate(rated(alone.baseline)) / cores,
        interval=None if ends is None else Interval(ends.low / cores, ends.high / cores),
        shares=shares(runs),
    )


def _rate(runs: Sequence[Run]) -> float:
    """Geometric mean of samples a second."""
    return math.exp(-fmean(per_sample(runs).logs))
