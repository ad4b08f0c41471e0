"""Whether the machine was another's too: how long ranks stood ready to run and had no core."""

from collections.abc import Iterable
from statistics import median

from ...machine.run_queue import QUEUE_LIMIT, in_each_second
from ..data.arms import Arm, Comparison
from ..data.load import Run, number


def queued(run: Run) -> float | None:
    """Seconds in the run queue of the worst rank's threads together, over seconds of training; None where
    it is not recorded."""
    return number(run.summary.get("run_queue_share"))


def share(arm: Arm) -> float | None:
    """The median over the runs that count; None where none of them has recorded it."""
    return median(found) if (found := _known(arm.counted)) else None


def reason(arm: Arm) -> str:
    """Why nothing can be said of how fast an arm is; "" where it can, or nothing is recorded."""
    stood = share(arm)
    if stood is None or stood <= QUEUE_LIMIT:
        return ""
    return (
        f"the machine was busy: the threads of a rank of {arm.label} stood ready without a core for "
        f"{in_each_second(stood)}, all together; at most {QUEUE_LIMIT:g} s"
    )


def warning(comparison: Comparison) -> str:
    """What a comparison in real time says of it; "" where every run had its cores."""
    found = _known(run for run in comparison.runs if run.counted)
    busy = [stood for stood in found if stood > QUEUE_LIMIT]
    if not busy:
        return ""
    return (
        f"The machine was busy in {len(busy)} of {len(found)} runs: the threads of a rank stood ready "
        f"without a core for up to {in_each_second(max(busy))}, all together (at most {QUEUE_LIMIT:g} s for "
        "a verdict, median over an arm's runs)."
    )


def _known(runs: Iterable[Run]) -> list[float]:
    return [stood for stood in map(queued, runs) if stood is not None]
