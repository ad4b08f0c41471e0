"""What forbids verdicts of a whole study: a weak or wrong baseline, an arm too good in samples, a placebo.

Source: docs/method.md, "Validity and guard", "Study design" and "Noise floor".
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from scipy.special import stdtr

from ....strategies.errors import ConfigError
from .estimate import Interval
from .ratio import Times, holm

_LEVEL = 0.05  # one-sided


@dataclass(frozen=True, kw_only=True)
class Shift:
    """ln of how many times the samples of the stored reference were needed, and its one-sided p.

    `adjusted`: p after correction for all arms that were held against the reference; of one alone, p itself.
    """

    log_shift: float
    p: float
    adjusted: float

    @property
    def flagged(self) -> bool:
        """Whether the shift is significant at 5 %, after correction."""
        return self.adjusted < _LEVEL


def worse(reference: Times, runs: Times) -> Shift:
    """A baseline against the stored convergence points, samples to target: flagged, it is a "weak baseline".

    One-sided pooled t test on ln S_target; p is that of "not worse". Raises ConfigError without a run on
    either side, or fewer than 3 in all.
    """
    return _shift(reference, runs, sign=1.0)


def better_in_samples(reference: Times, runs: Times) -> Shift:
    """Any arm against the same points: flagged, it needs fewer samples than it should, until explained.

    p is that of "not better", of this arm alone. Raises ConfigError as `worse` does.
    """
    return _shift(reference, runs, sign=-1.0)


def any_better(reference: Times, arms: Mapping[str, Times]) -> dict[str, Shift]:
    """All arms of a comparison against the same points, by name: with p by Holm over all of them.

    Each at 5 % by itself, seven sound arms would lose a verdict in about one study of four; corrected, in at
    most one of twenty, however many there are. (All share the reference, so Holm gives away a little: of
    seven arms 4 %.)
    """
    found = {name: better_in_samples(reference, runs) for name, runs in arms.items()}
    adjusted = holm([shift.p for shift in found.values()])
    return {
        name: replace(shift, adjusted=p) for (name, shift), p in zip(found.items(), adjusted, strict=True)
    }


def _shift(reference: Times, runs: Times, *, sign: float) -> Shift:
    counts = (len(reference.seconds), len(runs.seconds))
    if min(counts) < 1 or sum(counts) < 3:
        raise ConfigError(f"reference and runs: {counts[0]} and {counts[1]}; must be 1 or more, 3 in all")
    log_shift, p = pooled(np.array(reference.logs), np.array(runs.logs), sign=sign)
    return Shift(log_shift=float(log_shift), p=float(p), adjusted=float(p))


def pooled(reference: Any, runs: Any, *, sign: float = 1.0) -> tuple[Any, Any]:
    """mean(runs) - mean(reference), and the one-sided p that sign times it is at most 0; on the last axis."""
    counts = (reference.shape[-1], runs.shape[-1])
    df = sum(counts) - 2
    squares = sum(
        np.square(values - values.mean(axis=-1, keepdims=True)).sum(axis=-1) for values in (reference, runs)
    )
    error = np.sqrt(squares / df * sum(1 / count for count in counts))
    shift = runs.mean(axis=-1) - reference.mean(axis=-1)
    # Without any scatter every shift is significant, and none is not.
    t = sign * shift / np.where(error > 0, error, 1.0)
    return shift, np.where(error > 0, stdtr(df, -t), np.where(sign * shift > 0, 0.0, 1.0))


def wrong_baseline(other: Interval, floor: float) -> bool:
    """Whether the other of flat and hierarchical ddp beat the baseline A in the scored runs.

    `other`: the interval of T_A / T_other; `floor`: m as a share.
    """
    return other.low > 1 + floor


def placebo_differs(low: Any, high: Any, floor: Any) -> Any:
    """Whether a placebo is declared different: [low, high] of its ratio beyond the floor; also arrays."""
    return (low > 1 + floor) | (high < 1 / (1 + floor))


def choose_baseline(tuning: Sequence[tuple[str, Times]]) -> str:
    """The name with the smallest geometric mean time on the tuning seeds, the first of equals.

    Fixed in the plan and not chosen anew in each run. Raises ConfigError without candidates or for unequal
    numbers of runs, since both get the same tuning budget.
    """
    counts = {name: len(times.seconds) for name, times in tuning}
    if not counts or min(counts.values()) == 0 or len(set(counts.values())) > 1:
        raise ConfigError(f"tuning runs {counts}: must be the same number for each, 1 or more")
    return min(tuning, key=lambda pair: math.fsum(pair[1].logs))[0]
