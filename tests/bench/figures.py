"""What a figure is, and the statistics of paired blocks."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

# One-sided 95 % quantiles of Student's t by degrees of freedom; between them the next smaller one is used
# (conservative).
T95 = {5: 2.015, 10: 1.812, 15: 1.753, 20: 1.725, 25: 1.708, 29: 1.699, 39: 1.685, 59: 1.671, 119: 1.658}


@dataclass(frozen=True)
class Figure:
    """One line of the bench: `limit` None is for information, else `value` must be at most it.

    With `at_least` it must be at least it. samples: what `value` is the median of, for curves.
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


Bench = Callable[[], list[Figure]]


def geometric_mean(ratios: Sequence[float]) -> float:
    """exp(mean ln r)."""
    return math.exp(sum(map(math.log, ratios)) / len(ratios))


def upper_limit(ratios: Sequence[float]) -> float:
    """Upper one-sided 95 % t limit of the geometric mean of paired ratios (at least 6 of them)."""
    n = len(ratios)
    logs = [math.log(ratio) for ratio in ratios]
    mean = sum(logs) / n
    deviation = math.sqrt(sum((x - mean) ** 2 for x in logs) / (n - 1))
    quantile = T95[max(freedom for freedom in T95 if freedom <= n - 1)]
    return math.exp(mean + quantile * deviation / math.sqrt(n))
