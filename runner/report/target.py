"""An arm's way to its target: one budget, one baseline, and runs that missed it never dropped.

Figures and tables take them from here, the arithmetic from `runner/report/statistics/run_times.py`. Source:
docs/method.md, "Crossing the target" and "Runs that miss the target".
"""

from collections.abc import Sequence
from statistics import median
from typing import Any

from .data.arms import Arm, Comparison
from .data.load import Run, value_at
from .statistics.run_times import crossing_times
from .statistics.welch import Times

BUDGET = 2.0  # of the baseline's median T_train, where no train.max_seconds says otherwise


def study_of(run: Run, key: str, default: Any) -> Any:
    """`study.<key>` of a run, or `default` where it has none."""
    return value_at(run.config, "study", key) or default


def baseline_of(comparison: Comparison) -> Arm | None:
    """`study.baseline`, else the first arm with `ddp`; never a second baseline or the placebo."""
    name = next((name for run in comparison.runs if (name := study_of(run, "baseline", ""))), "")
    arms = [arm for arm in comparison.arms if not arm.runs[0].role]
    if name:
        return next((arm for arm in arms if name in (arm.label, arm.runs[0].arm_name)), None)
    return next((arm for arm in arms if arm.runs[0].strategy == "ddp"), None)


def budget_s(comparison: Comparison) -> float | None:
    """Seconds of T_train after which a run without a crossing is a failure, the same for all arms.

    The largest `train.max_seconds`, else twice the baseline's median time. None without a target, with
    several, or where neither is known.
    """
    if len(comparison.targets) != 1:
        return None
    asked = {value_at(run.config, "train", "max_seconds") for run in comparison.runs}
    limits = [float(limit) for limit in asked if isinstance(limit, int | float)]
    baseline = baseline_of(comparison)
    spent = [run.train_s for run in baseline.counted if run.train_s] if baseline else []
    return max(limits) if limits else BUDGET * median(spent) if spent else None


def way(runs: Sequence[Run], limit_s: float) -> Times:
    """The times of `runs` to their target. `limit_s`: the budget, seconds of T_train."""
    return crossing_times([run.crossing for run in runs], limit_s)
