"""Check "plan complete": whether the runs are those that the study's plan declares."""

from ..claims.speedups import Speedups
from .check import Check


def check(study: Speedups) -> Check:
    """Amber: no plan is read yet."""
    return Check(name="plan complete", level="amber", sentence="the plan was not read")
