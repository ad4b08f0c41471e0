"""Where training time went: computing, data, standing still for other ranks inside and between nodes."""

from collections.abc import Mapping, Sequence
from statistics import fmean

from .data.load import Run
from .data.numbers import number

PARTS = ("compute", "data", "blocked on intra", "blocked on inter", "other")


def shares(runs: Sequence[Run]) -> dict[str, float] | None:
    """Shares of training time by `PARTS`, mean over runs; None where a run has not recorded them."""
    each = []
    for run in runs:
        parts, blocked = run.parts_s, run.summary.get("blocked_s")
        total = sum(parts.values())
        if not isinstance(blocked, Mapping) or total <= 0:
            return None
        stood = [number(blocked.get(link, 0.0)) for link in ("intra", "inter")]
        known = [value for value in stood if value is not None]
        if len(known) < len(stood):
            return None
        seconds = [parts.get("compute", 0.0), parts.get("data", 0.0), *known]
        each.append([value / total for value in [*seconds, max(0.0, total - sum(seconds))]])
    return dict(zip(PARTS, map(fmean, zip(*each, strict=True)), strict=True)) if each else None
