"""How one arm is held against another: ratios of times, the difference of quality, and what explains them.

Source: docs/method.md, "Statistics of ratios"; the arithmetic is in `runner/report/statistics/`.
"""

import math
from collections.abc import Callable, Sequence

from ..data.arms import Arm, Comparison, per_sample
from ..data.load import Run
from ..statistics import decompose, quality, ratio, reached
from ..statistics.decompose import Decomposition, Work
from ..statistics.ratio import FEWEST_RUNS, Estimate, Ratio, Times
from ..target import budget_s, study_of, way


class Method:
    """How the arms of one comparison are held against one of them, all alike.

    `budget_s`: seconds of T_train after which a run has missed its target; None without a target.
    """

    def __init__(self, comparison: Comparison, baseline: Arm) -> None:
        self.comparison, self.baseline = comparison, baseline
        first = baseline.runs[0]
        self.level = float(study_of(first, "level", 0.95))
        self.paired = study_of(first, "interval", "welch") == "paired"
        self.budget_s = budget_s(comparison)

    def fixed_work(self, arm: Arm) -> Ratio | None:
        """Of T_train of the whole schedule; None unless all runs of both did it."""
        if not (_all_complete(self.baseline) and _all_complete(arm)):
            return None
        base, other = self._matched(self.baseline.complete, arm.complete)
        return self._ratio(_times(base), _times(other))

    def per_sample(self, arm: Arm) -> Ratio | None:
        """Of seconds a sample, over the runs of both that did all their work."""
        base, other = self._matched(rated(self.baseline), rated(arm))
        return self._ratio(per_sample(base), per_sample(other))

    def to_target(self, arm: Arm) -> Ratio | None:
        """Of the scored crossing times, runs that missed the target at the budget."""
        if self.budget_s is None:
            return None
        base, other = self._matched(self.baseline.counted, arm.counted)
        if min(len(base), len(other)) < FEWEST_RUNS:
            return None
        method: Callable[..., Ratio | None] = ratio.paired if self.paired else ratio.welch
        return reached.compare(
            way(base, self.budget_s),
            way(other, self.budget_s),
            method=method,
            level=self.level,
        )

    def quality(self, arm: Arm) -> Estimate | None:
        """Of the final accuracies, in points; runs that ended in none are told as diverged."""
        base, other = (_points(one) for one in (self.baseline, arm))
        return quality.difference(base, other, level=self.level)

    def parts(self, arm: Arm) -> Decomposition | None:
        """Throughput times statistical efficiency; None unless all runs of both reached the target."""
        if len(self.baseline.reached) < len(self.baseline.counted) or len(arm.reached) < len(arm.counted):
            return None
        return decompose.decompose(_work(self.baseline), _work(arm), level=self.level)

    def _ratio(self, base: Times, arm: Times) -> Ratio | None:
        return (ratio.paired if self.paired else ratio.welch)(base, arm, level=self.level)

    def _matched(self, base: list[Run], arm: list[Run]) -> tuple[list[Run], list[Run]]:
        """As they are, or with paired intervals the runs whose repetition both have, in its order."""
        if not self.paired:
            return base, arm
        by_block = [{run.block: run for run in runs} for runs in (base, arm)]
        both = sorted(by_block[0].keys() & by_block[1].keys(), key=str)
        return [by_block[0][block] for block in both], [by_block[1][block] for block in both]

    def not_whole(self, arm: Arm) -> list[str]:
        """How many runs of the baseline, and of `arm`, did not do all their work, where some did not."""
        pairs = ((one, len(one.counted) - len(_whole(one))) for one in (self.baseline, arm))
        return [_of(one, short, "did not do all their work") for one, short in pairs if short]

    def missed(self, arm: Arm) -> list[str]:
        """How many runs of the baseline, and of `arm`, missed the target, where some did."""
        if self.budget_s is None:
            return ["the study has no target"]
        pairs = ((one, len(one.counted) - len(one.reached)) for one in (self.baseline, arm))
        return [_of(one, short, "missed the target") for one, short in pairs if short]

    def notes(self, arm: Arm, fixed_work: Ratio | None, to_target: Ratio | None) -> list[str]:
        """Why a ratio is missing, or is to be read with care."""
        found = self.not_whole(arm)
        if self.budget_s is not None and to_target is None:
            found.append(
                f"reached the target: {len(self.baseline.reached)} of {len(self.baseline.counted)} runs of "
                f"{self.baseline.label}, {len(arm.reached)} of {len(arm.counted)} of {arm.label}: "
                "no ratio of times"
            )
        for said, made in (("all its work", fixed_work), ("the target", to_target)):
            if made is not None and made.sensitive_to_outliers:
                found.append(
                    f"time to {said}: sensitive to outliers (ratio of medians {made.ratio_of_medians:.3f})"
                )
        return found


def _of(arm: Arm, some: int, what: str) -> str:
    return f"{some} of {len(arm.counted)} runs of {arm.label} {what}"


def _whole(arm: Arm) -> list[Run]:
    """Runs that did the whole schedule: neither stopped at the target nor by a limit on their time."""
    return [run for run in arm.complete if run.counted and run.stop == "budget" and run.train_s]


def _all_complete(arm: Arm) -> bool:
    return len(_whole(arm)) == len(arm.counted) >= FEWEST_RUNS


def rated(arm: Arm) -> list[Run]:
    """The runs that did all their work, count, and say how fast."""
    return [run for run in arm.complete if run.counted and (run.samples_per_s or 0) > 0]


def _times(runs: Sequence[Run]) -> Times:
    return Times(tuple(run.train_s for run in runs if run.train_s))


def _points(arm: Arm) -> list[float]:
    found = (run.final for run in arm.counted if not diverged(run))
    return [100 * value for value in found if value is not None and math.isfinite(value)]


def diverged(run: Run) -> bool:
    """Whether its model came to nothing: it says so, or its last metric is no number."""
    if (run.config.get("launcher") or {}).get("timing_only"):  # nothing is learnt, so nothing can be lost
        return run.state == "diverged"
    last = run.final  # None: nothing was evaluated
    return run.state == "diverged" or (last is not None and not math.isfinite(last))


def _work(arm: Arm) -> Work:
    found = [run.crossing for run in arm.reached if run.crossing]
    return Work(tuple(one.scored_s for one in found), tuple(one.scored_samples for one in found))
