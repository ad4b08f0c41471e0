"""Check "baseline strong": whether the baseline reached its target in no more samples than is known."""

from ..claims.speedups import Speedups
from .check import Check

NAME = "baseline strong"


def check(study: Speedups) -> Check:
    """Red for a baseline that learnt nothing, is weak or is not the better one; amber where none is known."""
    guard, baseline = study.guard, study.baseline
    missed = (
        "baseline missed its target" if baseline.runs[0].target is not None else "baseline learnt nothing"
    )
    red = (
        (guard.untrained if guard else "", missed),
        (guard.weak if guard else "", "weak baseline"),
        (next(iter(study.wrong), ""), "wrong baseline"),
    )
    for sentence, reason in red:
        if sentence:
            return Check(name=NAME, level="red", sentence=sentence, forbids={baseline.label: reason})
    if guard is None or not guard.known:
        return Check(name=NAME, level="amber", sentence="nothing is stored for this workload")
    short = len(baseline.counted) - len(baseline.reached)
    if short:
        sentence = f"{short} of {len(baseline.counted)} runs of {baseline.label} missed the target"
        return Check(name=NAME, level="amber", sentence=sentence, details=(guard.sentence,))
    return Check(name=NAME, level="green", sentence=guard.sentence)
