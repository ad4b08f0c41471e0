"""Check "noise": what two runs of the baseline differ by."""

from ..claims.speedups import Speedups
from .check import Check


def check(study: Speedups) -> Check:
    """Amber without a noise floor."""
    floor = study.fixed_floor.floor
    if floor is None:
        return Check(name="noise", level="amber", sentence="the noise of the baseline was not measured")
    return Check(
        name="noise", level="green", sentence=f"two runs of the baseline differ by {100 * floor:.2g} %"
    )
