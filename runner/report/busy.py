"""Whether the machine was another's too: how long ranks stood ready to run and had no core.

Source of the limit: the measuring rules (time to accuracy), "validity".
"""

from collections.abc import Iterable
from statistics import median

from .arms import Arm, Comparison
from .load import Run
from .numbers import number

LIMIT = 0.01  # of training time


def queued(run: Run) -> float | None:
    """The worst rank's share of training time in the run queue; None where it is not recorded."""
    return number(run.summary.get("run_queue_share"))


def share(arm: Arm) -> float | None:
    """The median over the runs that count; None where none of them has recorded it."""
    return median(found) if (found := _known(arm.counted)) else None


def reason(arm: Arm) -> str:
    """Why nothing can be said of how fast an arm is; "" where it can, or nothing is recorded."""
    stood = share(arm)
    if stood is None or stood <= LIMIT:
        return ""
    return (
        f"the machine was busy: {stood:.1%} of training time a rank of {arm.label} was ready and had no "
        f"core; at most {LIMIT:.0%}"
    )


def warning(comparison: Comparison) -> str:
    """What a comparison in real time says of it; "" where every run had its cores."""
    found = _known(run for run in comparison.runs if run.counted)
    busy = [stood for stood in found if stood > LIMIT]
    if not busy:
        return ""
    return (
        f"The machine was busy in {len(busy)} of {len(found)} runs: up to {max(busy):.1%} of training time a "
        f"rank was ready and had no core (at most {LIMIT:.0%} for a verdict, median over an arm's runs)."
    )


def _known(runs: Iterable[Run]) -> list[float]:
    return [stood for stood in map(queued, runs) if stood is not None]
