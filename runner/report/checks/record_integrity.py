"""Check "records intact": whether the records of each run agree with each other."""

from ..claims.speedups import Speedups
from .check import Check


def check(study: Speedups) -> Check:
    """Red where a run's records were damaged."""
    damaged = [run for run in study.comparison.runs if run.damage]
    return Check(
        name="records intact",
        level="red" if damaged else "green",
        sentence=f"{len(damaged)} of {len(study.comparison.runs)} runs have damaged records",
    )
