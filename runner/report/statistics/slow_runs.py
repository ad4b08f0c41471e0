"""Slow runs: those much slower than their arm's median, and the times of the typical runs without them.

What is estimated is the ratio of geometric means of undisturbed runs. A slow run does not enter the mean; in
the variance it counts as a run just at the limit, since a limit that is itself estimated cuts off some runs
that nothing disturbed. Source: docs/method.md, "Slow runs".
"""

import math
from dataclasses import replace
from typing import Any

import numpy as np

from .welch import Times

FEWEST = 5  # runs of an arm; in a smaller one no run is called slow
MADS = 4.0  # scaled median absolute deviations above the median
SCALE = 1.4826  # makes the median absolute deviation of normal values their standard deviation
LEAST_LOG = math.log(1.05)  # a run that takes less than 5 % longer is never slow


def limits(logs: Any, grid_variance: Any = 0.0) -> Any:
    """ln of the time above which runs are slow: of ln T [..., runs] one for each arm [...].

    `grid_variance` [...]: what the evaluation grid puts into ln T. Where most runs cross at one mark, it is
    the only scatter that is known.
    """
    middle = np.median(logs, axis=-1)
    mad = SCALE * np.median(np.abs(logs - middle[..., None]), axis=-1)
    return middle + np.maximum(MADS * np.sqrt(mad**2 + grid_variance), LEAST_LOG)


def typical(times: Times) -> tuple[Times, tuple[int, ...]]:
    """The times of the typical runs of an arm, and the places of its slow runs in `times`, in their order.

    The least variance of the typical times is that of all times, slow ones taken at the limit.
    """
    logs = np.array(times.logs)
    if len(logs) < FEWEST:
        return times, ()
    limit = float(limits(logs, times.grid_variance))
    slow = tuple(np.flatnonzero(logs > limit).tolist())
    if not slow:
        return times, ()
    kept = [place for place in range(len(logs)) if place not in slow]
    made = Times(
        tuple(times.seconds[place] for place in kept),
        tuple(times.log_widths[place] for place in kept) if times.log_widths else (),
    )
    return replace(made, slow_variance=float(np.minimum(logs, limit).var(ddof=1))), slow
