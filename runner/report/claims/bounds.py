"""Upper bound of the speed-up, from the times of the baseline: no arm on this machine can exceed it.

Source: docs/method.md, "Why an arm is faster"; the arithmetic is in `runner/report/statistics/decompose.py`.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass

from ..data.arms import Arm
from ..data.load import Run
from ..data.means import geometric_mean
from ..data.rank_times import by_rank, shares, uneven_devices
from ..statistics import decompose

_SHARES = ("batches", "samples_of_worker")  # where a strategy records that its ranks take unequal numbers


@dataclass(frozen=True, kw_only=True)
class Bound:
    """Times as fast as the baseline; `limit`: its upper one-sided limit. None: not known.

    `uneven`: devices differ, so that it is the bound of perfect balance and not of communication alone.
    """

    value: float | None
    limit: float | None
    uneven: bool

    @property
    def sentence(self) -> str:
        """The bound in words, or why it is not known; "" for equal devices whose times are not recorded."""
        if not self.uneven:
            if self.value is None:
                return ""
            return (
                f"Without any communication the baseline would be {self.value:.3f} times as fast: no saving "
                "of communication can exceed that."
            )
        if self.value is None:
            return (
                "Devices differ, and not all ranks of the baseline recorded their times: how much faster "
                "its work could be done is unknown."
            )
        return (
            "Devices differ: with all at work all the time, each at its own speed, and no communication, the "
            f"baseline's work would be done {self.value:.3f} times as fast. No other division of the same "
            "work can exceed that."
        )


def bound_of(baseline: Arm) -> Bound:
    """From the complete runs of the baseline.

    Where devices differ, by configuration or by the ranks' records, every run has to have recorded the times
    of all its ranks.
    """
    runs, uneven = baseline.complete, any(differ(run) for run in baseline.runs)
    bounds = [_balanced(run) if uneven else _communication(run) for run in runs]
    known = [value for value in bounds if value is not None]
    if uneven and len(known) < len(runs):
        known = []
    return Bound(value=geometric_mean(known), limit=decompose.bound_limit(known), uneven=uneven)


def differ(run: Run) -> bool:
    """Whether the ranks have unequal devices: as configured, by their model, or by measured steps."""
    rows = run.environment.get("ranks")
    ranks = [row for row in rows if isinstance(row, Mapping)] if isinstance(rows, list) else []
    models = {str(row.get("device_model")) for row in ranks if row.get("device_model") is not None}
    cluster = run.config.get("cluster")
    device = cluster.get("device") if isinstance(cluster, Mapping) else None
    traced = isinstance(device, Mapping) and bool(device.get("trace"))
    return uneven_devices(run) or len(models) > 1 or traced


def _communication(run: Run) -> float | None:
    parts = run.parts_s
    total = math.fsum(parts.values())
    exposed, waiting = parts.get("exposed", 0.0), parts.get("waiting", 0.0)
    if not parts or total - exposed - waiting <= 0:
        return None
    return decompose.bound(total, exposed_s=max(0.0, exposed), waiting_s=max(0.0, waiting))


def _balanced(run: Run) -> float | None:
    """None unless every rank's parts and samples are known."""
    times, recorded = by_rank(run), run.summary.get("strategy")
    nodes = (run.config.get("cluster") or {}).get("ranks_per_node")
    if not isinstance(nodes, list) or sum(nodes) != len(times):
        return None
    if not all({"train_s", "exposed_s", "waiting_s"} <= rank.keys() for rank in times):
        return None
    busy = [rank["train_s"] - max(0.0, rank["exposed_s"]) - max(0.0, rank["waiting_s"]) for rank in times]
    uneven = isinstance(recorded, Mapping) and any(recorded.get(key) for key in _SHARES)
    samples = shares(run) if uneven else [1.0] * len(times)
    if len(samples) != len(times) or min(*busy, *samples) <= 0:
        return None
    train_s = max(rank["train_s"] for rank in times)
    # Never below 1 but for rounding: no rank is busy longer than the slowest trains.
    return max(1.0, decompose.balanced_bound(train_s, busy_s=busy, samples=samples))
