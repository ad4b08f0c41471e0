"""Check "model error": how far virtual time is off, and that every interval holds it."""

from ..claims.speedups import Speedups
from .check import Check


def check(study: Speedups) -> Check:
    """Amber in virtual time: times are modelled."""
    if study.comparison.world != "simulated":
        return Check(name="model error", level="green", sentence="times were measured, not modelled")
    return Check(name="model error", level="amber", sentence="times are modelled")
