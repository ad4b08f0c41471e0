"""A figure of a bench, and the statistics of paired ratios."""

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Figure:
    """One line of a bench: `value` must be at most `limit`, with `at_least` at least it; None: no limit.

    samples: what `value` is the median of.
    """

    name: str
    value: float
    limit: float | None
    detail: str
    at_least: bool = False
    samples: tuple[float, ...] = ()

    @property
    def ok(self) -> bool:
        """Whether the figure keeps its limit; NaN never does."""
        if self.limit is None:
            return True
        return self.value >= self.limit if self.at_least else self.value <= self.limit

    def line(self) -> str:
        """`bench NAME VALUE LIMIT ok|short`; a limit that must be reached is written >=LIMIT."""
        limit = "-" if self.limit is None else f"{'>=' if self.at_least else ''}{self.limit:g}"
        return f"bench {self.name} {self.value:.4g} {limit} {'ok' if self.ok else 'short'}"


def upper_limit(ratios: Sequence[float]) -> float:
    """Upper one-sided 95 % t limit of the geometric mean of paired ratios."""
    from scipy.special import stdtrit  # here: a process that only reads files is measured without SciPy

    logs = [math.log(ratio) for ratio in ratios]
    error = statistics.stdev(logs) / math.sqrt(len(logs))
    return math.exp(statistics.fmean(logs) + float(stdtrit(len(logs) - 1, 0.95)) * error)
