"""Check "baseline strong": whether the baseline needs no more samples than is known of the workload."""

from ..claims.speedups import Speedups
from .check import Check


def check(study: Speedups) -> Check:
    """Red for a weak or a wrong baseline, amber where nothing is stored for the workload."""
    guard, label = study.guard, study.baseline.label
    if study.wrong or (guard and guard.weak):
        reason = guard.weak if guard and guard.weak else study.wrong[0]
        return Check(
            name="baseline strong", level="red", sentence=reason, forbids={label: "the baseline is weak"}
        )
    if guard is None or guard.reference is None:
        return Check(name="baseline strong", level="amber", sentence="nothing is stored for this workload")
    return Check(name="baseline strong", level="green", sentence=guard.sentence)
