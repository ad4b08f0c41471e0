"""Why an arm is faster: throughput times statistical efficiency, and what no communication saving can exceed.

Source: docs/method.md, "Why an arm is faster".
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from scipy.special import stdtrit

from ....strategies.errors import ConfigError, above, at_least
from .ratio import FEWEST_RUNS, LEVEL, Ratio, Times, exponential, mean_of, welch


@dataclass(frozen=True)
class ArmWork:
    """The runs of one arm: training time in seconds and the global samples applied in it, to target or all.

    Raises ConfigError for unequal numbers or values that are not positive and finite.
    """

    seconds: tuple[float, ...]
    samples: tuple[float, ...]

    def __post_init__(self) -> None:
        if len(self.seconds) != len(self.samples):
            raise ConfigError(
                f"{len(self.seconds)} seconds, {len(self.samples)} samples: must be one each per run"
            )
        Times(self.seconds)
        Times(self.samples)

    @property
    def seconds_per_sample(self) -> Times:
        """1 / X of each run."""
        return Times(tuple(t / s for t, s in zip(self.seconds, self.samples, strict=True)))


@dataclass(frozen=True, kw_only=True)
class Decomposition:
    """speed-up = throughput · statistical, as ratios with intervals; for fixed work `statistical` is 1."""

    throughput: Ratio
    statistical: Ratio


def decompose(base: ArmWork, arm: ArmWork, *, level: float = LEVEL) -> Decomposition | None:
    """(X_arm / X_base) · (S_base / S_arm) from the runs of both arms; None below 3 runs on a side.

    The points are ratios of geometric means, so that their product is exactly the ratio of times. The
    interval of that is not theirs: it is `ratio.welch` on crossing times, with the grid variance.
    """
    throughput = welch(base.seconds_per_sample, arm.seconds_per_sample, level=level)
    statistical = welch(Times(base.samples), Times(arm.samples), level=level)
    if throughput is None or statistical is None:
        return None
    return Decomposition(throughput=throughput, statistical=statistical)


def bound(step_s: float, *, exposed_s: float, waiting_s: float = 0.0) -> float:
    """T / (T - exposed - waiting) of the baseline: what no communication saving can exceed.

    Any unit, the same for all three. Raises ConfigError for negative parts, or parts that fill the whole
    time.
    """
    at_least("exposed_s", exposed_s, 0.0)
    at_least("waiting_s", waiting_s, 0.0)
    above("step_s - exposed_s - waiting_s", step_s - exposed_s - waiting_s, 0.0)
    return step_s / (step_s - exposed_s - waiting_s)


def balanced_bound(train_s: float, *, busy_s: Sequence[float], samples: Sequence[float]) -> float:
    """The bound where devices differ: T / T*, with T* the time of the same samples in perfect balance.

    T / (T - exposed - waiting) takes a rank's waiting for a slow one as lost, and no more: it is the mean of
    what ranks could do if each kept its own samples. An arm that gives fast devices more of them is not held
    by it. Rank i computed n_i samples in c_i busy seconds, so its speed is n_i / c_i. With every device at
    work all the time and no communication they do Σ n_i / c_i a second together, hence

        T* = Σ n_i / Σ (n_i / c_i),    bound = T / T*.

    Equal samples, c_i = w / s_i, and a slowest rank that all wait for, T = w / min s: T / T* is the mean
    speed over the slowest one. Of speeds 1, 1, 1/2, 1/4 that is 0.6875 / 0.25 = 2.75, where the bound of
    equal devices is T over the mean of c_i, 4 / 2 = 2. Of equal devices both are the same.

    Args:
        train_s: T, seconds of the baseline's training.
        busy_s: c_i by rank, seconds in which it neither was exposed to transfers nor waited for others.
        samples: n_i by rank, in any unit.

    Raises ConfigError for unequal lengths, or numbers that are not positive.
    """
    if len(busy_s) != len(samples) or not busy_s:
        raise ConfigError(f"{len(busy_s)} busy times, {len(samples)} counts of samples: one each per rank")
    for name, values in (("train_s", [train_s]), ("busy_s", busy_s), ("samples", samples)):
        for value in values:
            above(name, value, 0.0)
    together = math.fsum(n / c for n, c in zip(samples, busy_s, strict=True))
    return train_s / (math.fsum(samples) / together)


def bound_limit(bounds: Sequence[float], *, level: float = LEVEL) -> float | None:
    """Upper one-sided limit of the bound from one bound per run: t on their logarithms; None below 3 runs."""
    if len(bounds) < FEWEST_RUNS:
        return None
    logs = mean_of(Times(tuple(bounds)).logs)
    return exponential(logs.difference + float(stdtrit(logs.df, level)) * logs.error)
