"""Upper bound of the speed-up, from the times of the baseline: no arm on this machine can exceed it.

Source: docs/method.md, "Why an arm is faster".
"""

import math
from collections.abc import Sequence
from dataclasses import replace

from ..data.arms import Arm
from ..data.load import Run, number, value_at
from ..data.means import by_rank, geometric_mean
from ..statistics.verdict import Bound
from ..statistics.welch import FEWEST_RUNS, exponential, mean_of
from .recorded import ranks_of

COMMUNICATION, BALANCE = "communication", "balance and communication"


def bound_of(baseline: Arm) -> Bound:
    """From the complete runs of the baseline: T / (T - exposed - waiting), or where devices differ T / T*.

    Devices differ by configuration or by the ranks' records. There every run has to have recorded the times
    of all its ranks.
    """
    runs, uneven = baseline.complete, any(map(differ, baseline.runs))
    bounds = [_balanced(run) if uneven else _communication(run) for run in runs]
    known = [value for value in bounds if value is not None]
    if uneven and len(known) < len(runs):
        known = []
    of = BALANCE if uneven else COMMUNICATION
    return Bound(value=geometric_mean(known), limit=upper_limit(known), of=of)


def ceiling_of(bound: Bound, arm: Arm, *, to_target: bool) -> Bound:
    """An arm's own ceiling: `bound` without the steps in which its schedule has it wait as the baseline does.

    `to_target`: of the steps up to the target, else of all. Its limit stays that of all arms: it is about any
    saving of communication, whatever the schedule.
    """
    name = "communication_share_to_target" if to_target else "communication_share"
    recorded = [number(run.summary.get(name)) for run in arm.counted]
    share = min((value for value in recorded if value is not None), default=0.0)
    if bound.value is None or not 0 < share <= 1:
        return bound
    return replace(bound, value=reduced(bound.value, share), schedule=schedule_words(share))


def reduced(bound: float, share: float) -> float:
    """The bound where a share of the steps, 0 to 1, takes as long as the baseline's."""
    return 1 / (1 - (1 - share) * (1 - 1 / bound))


def schedule_words(share: float) -> str:
    """What of an arm's schedule lowers its ceiling."""
    return f"its schedule waits for a global sum in {100 * share:.0f} % of the steps"


def differ(run: Run) -> bool:
    """Whether the ranks have unequal devices: as configured, by their model, or by measured steps."""
    device = value_at(run.config, "cluster", "device")
    if value_at(device, "straggler", "rank") is not None or value_at(device, "trace"):
        return True
    models = [model for row in ranks_of(run) if (model := row.get("device_model")) is not None]
    of_ranks = (models, value_at(device, "speeds"), value_at(device, "kind"))
    return any(isinstance(values, list) and len(set(map(str, values))) > 1 for values in of_ranks)


def upper_limit(bounds: Sequence[float]) -> float | None:
    """Upper one-sided 95 % limit of the bound from one bound per run: t on their logarithms; None below 3."""
    if len(bounds) < FEWEST_RUNS:
        return None
    return exponential(mean_of([math.log(bound) for bound in bounds], level=0.9).interval.high)


def _communication(run: Run) -> float | None:
    total = math.fsum(run.parts_s.values())
    exposed, waiting = (max(0.0, run.parts_s.get(part, 0.0)) for part in ("exposed", "waiting"))
    kept = total - exposed - waiting
    return total / kept if kept > 0 else None


def _balanced(run: Run) -> float | None:
    """T / T*, with T* the time of the same samples in perfect balance, each rank at its own speed.

    A rank is busy while it neither is exposed to transfers nor waits for others. None unless every rank's
    parts and samples are known.
    """
    times, nodes = by_rank(run), value_at(run.config, "cluster", "ranks_per_node")
    if not isinstance(nodes, list) or sum(nodes) != len(times):
        return None
    if not all({"train_s", "exposed_s", "waiting_s"} <= rank.keys() for rank in times):
        return None
    busy = [rank["train_s"] - max(0.0, rank["exposed_s"]) - max(0.0, rank["waiting_s"]) for rank in times]
    split = (value_at(run.summary, "strategy", key) for key in ("batches", "samples_of_worker"))
    samples = next(filter(None, split), [1.0] * len(times))
    # A worker may be a whole node: then its samples are not those of a rank.
    if not isinstance(samples, list) or len(samples) != len(times):
        return None
    if any((number(value) or 0.0) <= 0 for value in (*busy, *samples)):
        return None
    train_s = max(rank["train_s"] for rank in times)
    together = math.fsum(n / c for n, c in zip(samples, busy, strict=True))
    # Never below 1 but for rounding: no rank is busy longer than the slowest trains.
    return max(1.0, train_s / (math.fsum(samples) / together))
