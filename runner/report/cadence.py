"""Whether evaluating is seen in training time: an arm's runs that differ in the evaluations' distance alone.

A study asks with assumptions that set `train.eval_every_samples` to a quarter of its own and to four times as
much. Source: the measuring rules (time to accuracy), "validity, fairness ledger, guard".
"""

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Any

from ..scoring.validity import Cadence, cadence
from .arms import Arm, Comparison, settings
from .load import Run

_KEY = "train.eval_every_samples"


def cadences(comparison: Comparison, others: Iterable[Comparison], floor: float | None) -> dict[str, Cadence]:
    """By arm's label; only arms that ran at another distance. `floor`: m_clock of the comparison.

    Compared are runs of one seed that were judged in the same way (inline, deferred).
    """
    beside = [other for other in others if other.assumption and _place(other) == _place(comparison)]
    virtual = comparison.world == "simulated"
    found: dict[str, Cadence] = {}
    for arm in comparison.arms:
        ratios = _ratios(arm, beside)
        if ratios:
            found[arm.label] = cadence(ratios, virtual=virtual, floor=floor)
    return found


def reason(label: str, found: Cadence) -> str:
    """Why an arm that fails gets no verdict."""
    told = ", ".join(
        f"{change:.4g} times as long with evaluations {times:g} times as far apart"
        for times, change in found.changes.items()
    )
    return f"{label} trains at another speed when it is evaluated more or less often: a sample takes {told}"


def remark(found: Cadence) -> str:
    """What the check came to, for an arm that does not fail."""
    if not found.judged:
        return f"evaluation distance not judged: {found.why}"
    return f"evaluations at {_listed(found)} of their distance leave training as it is"


def _listed(found: Cadence) -> str:
    return " and ".join(f"{times:g}" for times in found.changes)


def _place(comparison: Comparison) -> tuple[Any, ...]:
    c = comparison
    return c.study, c.model, c.dataset, c.world, c.size, c.tuned


def _ratios(arm: Arm, beside: Iterable[Comparison]) -> dict[float, list[float]]:
    """Times the arm's own distance -> ln of the time of a sample over its own, for each seed."""
    first = arm.runs[0]
    own, rest = _split(first)
    found: dict[float, list[float]] = defaultdict(list)
    if not own:
        return {}
    mine = {_repeat(run): run for run in arm.counted}
    for other in (other for comparison in beside for other in comparison.arms):
        distance, theirs = _split(other.runs[0])
        if not distance or distance == own or theirs != rest or other.runs[0].role != first.role:
            continue
        for run in other.counted:
            twin = mine.get(_repeat(run))
            if twin is None or _mode(twin) != _mode(run):
                continue
            here, there = _per_sample(twin), _per_sample(run)
            if here and there:
                found[distance / own].append(math.log(there / here))
    return dict(found)


def _split(run: Run) -> tuple[float | None, dict[str, Any]]:
    """The distance of the evaluations in samples, and all other settings."""
    known = settings(run)
    distance = known.pop(_KEY, None)
    return (float(distance) if isinstance(distance, int | float) else None), known


def _per_sample(run: Run) -> float | None:
    return run.train_s / run.samples if run.train_s and run.samples else None


def _mode(run: Run) -> str | None:
    """How its models were judged, but for the last one, which always is inline."""
    modes = [row.get("mode") for row in run.evaluations]
    return str(modes[0]) if modes else None


def _repeat(run: Run) -> tuple[Any, Any]:
    config: Mapping[str, Any] = run.config.get("run") or {}
    return run.seed, config.get("repeat")
