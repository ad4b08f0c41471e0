"""Several arms against one baseline: Holm's correction of gains and losses, and what more runs would decide.

Source: docs/method.md, "Statistics of ratios".
"""

import math
from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
from scipy.special import chdtri, ndtri
from scipy.stats import qmc

from .welch import POWER, SIGNIFICANT, Estimate, Ratio, error_of, holm, t_limit

EACH_SIDE = SIGNIFICANT / 2  # of a Holm-adjusted one-sided p: alone, the interval of 95 % says the same
MOST_RUNS = 100  # up to which the number of runs that would decide is looked for
SPREAD_LEVEL = 0.8  # of the upper limit of the variance that a plan of more runs counts on
_DRAWS = 512


Decides = Callable[[Any, Any, Any, Any], Any]
"""Which of many studies decide, as a boolean array [studies], from the ends of their intervals [studies]: low
and high as printed, low and high of the interval that holds for all arms at once."""


@dataclass(frozen=True, kw_only=True)
class Family:
    """One arm's estimate and those of the other arms of the comparison: all ratios, or all in points.

    p values are one-sided, and adjusted by Holm for all of them. `verdicts`: how many must decide together,
    2 where time and quality make one verdict.
    """

    own: Ratio | Estimate
    others: Sequence[Ratio | Estimate] = ()
    verdicts: int = 1

    @property
    def p_of_gain(self) -> float:
        """Of "no gain": the true ratio is at most 1, the true difference at most 0."""
        return holm([each.p_no_gain for each in (self.own, *self.others)])[0]

    def p_of_loss(self, edge: float) -> float:
        """Of "not below `edge`", a ratio or a difference in points."""
        return holm([each.p_not_below(edge) for each in (self.own, *self.others)])[0]

    def smallest_n(self, decides: Decides, runs: int) -> int | None:
        """The smallest n above `runs`, at most 100, with which 4 of 5 further studies decide; None if none.

        `decides` sees studies of n runs an arm. Their true value lies where this study leaves room for it,
        and their runs scatter as much as the upper one-sided 80 % limit of the variance allows (chi-square).
        Where two verdicts must decide, 9 of 10 studies decide on each, so that both do in 4 of 5. Decisions
        become more frequent with n, so halving finds it.
        """
        more = range(runs + 1, MOST_RUNS + 1)

        def decided(runs: int) -> bool:
            return bool(np.mean(decides(*self._ends(runs))) >= 1 - (1 - POWER) / self.verdicts)

        if not more or not math.isfinite(self._estimate.error) or not decided(MOST_RUNS):
            return None
        return more[bisect_left(more, True, key=decided)]

    @property
    def _estimate(self) -> Estimate:
        return self.own.estimate if isinstance(self.own, Ratio) else self.own

    def _ends(self, runs: int) -> tuple[Any, Any, Any, Any]:
        """The ends, as of `Decides`, of intervals that studies of `runs` runs an arm may find."""
        made = self._estimate
        error, df = error_of(made.variances, made.counts)
        wider = float(df / chdtri(df, SPREAD_LEVEL))
        variances, counts = [wider * variance for variance in made.variances], [runs] * len(made.variances)
        of_truth, of_mean, *of_variances = _uniform(2 + len(variances))
        truth = made.difference + math.sqrt(wider) * float(error) * ndtri(of_truth)
        found = truth + float(error_of(variances, counts)[0]) * ndtri(of_mean)
        seen = [
            variance * chdtri(runs - 1, 1 - column) / (runs - 1)
            for variance, column in zip(variances, of_variances, strict=True)
        ]
        fixed, fixed_counts = zip(*made.fixed, strict=True) if made.fixed else ((), ())
        errors, dfs = error_of([*seen, *fixed], [*counts, *fixed_counts])
        of_all = max(made.level, 1 - 2 * EACH_SIDE / (1 + len(self.others)))
        halves = [t_limit(level, dfs) * errors for level in (made.level, of_all)]
        lows, highs = [found - half for half in halves], [found + half for half in halves]
        if isinstance(self.own, Ratio):
            lows = [np.zeros(_DRAWS) if self.own.side == "≤" else np.exp(low) for low in lows]
            highs = [np.full(_DRAWS, math.inf) if self.own.side == "≥" else np.exp(high) for high in highs]
        return lows[0], highs[0], lows[1], highs[1]


@cache
def _uniform(columns: int) -> Any:
    """[columns, draws] in (0, 1), spread evenly and always the same."""
    return qmc.Halton(columns, scramble=False).fast_forward(1).random(_DRAWS).T
