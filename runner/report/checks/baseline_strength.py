"""Check "baseline strong": whether the baseline reached its target in no more samples than is known."""

from .. import words
from ..claims.arm_speedup import missed
from ..claims.speedups import Speedups
from .check import Check

NAME = "baseline strong"


def check(study: Speedups) -> Check:
    """Red for a baseline that learnt nothing, is weak or is not the better one; amber where none is known."""
    guard, baseline = study.guard, study.baseline
    untrained = "learnt nothing" if baseline.runs[0].target is None else "missed its target"
    red = (
        (guard.untrained, f"baseline {untrained}"),
        (guard.weak, "weak baseline"),
        (next(iter(study.wrong), ""), "wrong baseline"),
    )
    for sentence, reason in red:
        if sentence:
            return Check(name=NAME, level="red", sentence=sentence, forbids={baseline.label: reason})
    if not guard.known:
        return Check(name=NAME, level="amber", sentence="nothing is stored for this workload")
    stored = [f"{len(each.samples)} stored runs of {each.name} ({each.date})" for each in guard.known]
    compared = f"samples to target were compared with {words.listed(stored)}"
    if wrong := [*missed(baseline), *guard.flagged.values()]:
        return Check(name=NAME, level="amber", sentence="; ".join(wrong), details=(compared,))
    return Check(name=NAME, level="green", sentence=compared)
