"""Fits of a cluster's parameters to measured times, and the dataclasses that hold a calibration's results.

The first axis of every array is the round. A fit is made of medians over rounds, and its interval of medians
over rounds drawn with replacement (bootstrap, percentiles 2.5 and 97.5).
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from scipy import stats
from scipy.optimize import nnls

from ..communication.collectives import Ends, seconds, through

DRAWS = 400
ODD_RANK = 0.05  # ranks that differ more from the median rank have a speed of their own
TRUSTED = 0.15  # the largest error of a modelled step time that counts as validated
# By distribution that virtual time can draw, the widest jitter that `cluster.device` accepts.
WIDEST = {"gaussian": 0.3, "lognormal": 1.0, "student_t3": 0.3}
_NARROWEST_CV, _CVS = 1e-4, 600
SMALL_BYTES, SMALL_SIZES = 1024, 3  # payloads that take no time of their own; so many give a latency

Interval = tuple[float, float]


@dataclass(frozen=True, kw_only=True)
class LineFit:
    """Seconds t = fixed + slope · x, both parts at least 0, with intervals of 95 %, from so many rounds.

    `worst`: the largest relative error (fit over measured, minus 1), `worst_at`: the x where it is.
    """

    fixed: float
    slope: float
    fixed_interval: Interval
    slope_interval: Interval
    worst: float
    worst_at: float
    rounds: int

    @property
    def rate(self) -> float:
        """x a second, infinite if time does not grow with x."""
        return _over(1, self.slope)

    @property
    def rate_interval(self) -> Interval:
        low, high = self.slope_interval
        return _over(1, high), _over(1, low)


@dataclass(frozen=True, kw_only=True)
class Steps:
    """Steps of `sizes` samples, and the fit to their times.

    `own` [ranks, steps]: seconds of single steps of the run's own size. `data_ms`: to get a batch.
    """

    sizes: tuple[int, ...]
    own: np.ndarray
    fit: LineFit
    forward_share: float
    jitter: str
    jitter_cv: float
    speeds: tuple[float, ...] | None
    data_ms: float


@dataclass(frozen=True)
class Overlap:
    """`stretched_ms`: what sums add to forward and backward; `hidden_ms`: their time during backward."""

    loss: float
    stretched_ms: float
    hidden_ms: float
    interval: Interval
    rounds: int


@dataclass(frozen=True, kw_only=True)
class HoldOut:
    """Seconds of a step of ddp at a size that is in no fit: of each real run, and modelled."""

    batch: int
    steps: int
    measured: tuple[float, ...]
    modelled: float

    @property
    def measured_s(self) -> float:
        return float(np.median(self.measured))

    @property
    def error(self) -> float:
        return self.modelled / self.measured_s - 1


@dataclass(frozen=True, kw_only=True)
class Calibration:
    """All that goes into the file: what was measured and where, in lines, and the results.

    `batch`: samples of a rank's step. `device`: its model name. `links`: by class (intra, inter), as far as
    the run has them.
    """

    about: tuple[str, ...]
    batch: int
    device: str
    on_gpus: bool
    ranks_of_nodes: tuple[int, ...]
    steps: Steps
    links: dict[str, LineFit]
    overlap: Overlap | None
    hold_out: HoldOut | None = None

    @property
    def ranks(self) -> int:
        return sum(self.ranks_of_nodes)


# ------------------------------------------------------------------ lines


def line_through(x: Sequence[float], seconds: Sequence[float] | np.ndarray) -> tuple[float, float]:
    """fixed and slope, at least 0, of least squares of relative errors: Σ ((fixed + slope·x - t) / t)².

    Relative, so that a step of 1 ms and one of 100 ms are modelled equally well.
    """
    xs, ts = np.asarray(x, float), np.asarray(seconds, float)
    (fixed, slope), _ = nnls(np.stack([1 / ts, xs / ts], 1), np.ones(len(ts)))
    return float(fixed), float(slope)


def line_fit(x: Sequence[float], seconds: np.ndarray) -> LineFit:
    """Fit a line. `seconds` [rounds, len(x)]: of a step of x samples, or of a sum over links of x bytes."""

    medians = np.median(seconds, 0)
    fixed, slope = line_through(x, medians)
    fixed_interval, slope_interval = bootstrap(seconds, lambda drawn: line_through(x, np.median(drawn, 0)))
    errors = (fixed + slope * np.asarray(x, float)) / medians - 1
    place = int(np.abs(errors).argmax())
    return LineFit(
        fixed=fixed,
        slope=slope,
        fixed_interval=fixed_interval,
        slope_interval=slope_interval,
        worst=float(errors[place]),
        worst_at=float(x[place]),
        rounds=len(seconds),
    )


def small_end(sizes: Sequence[float], times_s: Sequence[float]) -> float | None:
    """The latency of a collective in seconds: the median of payloads up to 1 KiB; None of fewer than 3."""
    small = [time_s for size, time_s in zip(sizes, times_s, strict=True) if size <= SMALL_BYTES]
    return float(np.median(small)) if len(small) >= SMALL_SIZES else None


def ramp_fit(sizes: Sequence[float], times_s: Sequence[float], small_s: float) -> tuple[float, Ends]:
    """The ramp in hundredths, by least squares of relative errors, and the ends of the curve.

    Every curve goes through `small_s` and the last size, `times_s` of which is not below `small_s`.
    """

    def error(ramp: float) -> float:
        curve = through(small_s, sizes[-1], times_s[-1], ramp)
        modelled = [seconds(size, curve, ramp) for size in sizes]
        return sum((model / time - 1) ** 2 for model, time in zip(modelled, times_s, strict=True))

    ramp = min((hundredth / 100 for hundredth in range(101)), key=error)
    return ramp, through(small_s, sizes[-1], times_s[-1], ramp)


def bootstrap(rounds: np.ndarray, parts: Callable[[np.ndarray], Sequence[float]]) -> list[Interval]:
    """95 % intervals of what `parts` makes of rounds (the first axis), drawn with replacement."""
    rng = np.random.default_rng(0)
    drawn = np.sort([parts(rounds[rng.integers(0, len(rounds), len(rounds))]) for _ in range(DRAWS)], 0)
    low, high = drawn[math.floor(0.025 * (DRAWS - 1))], drawn[math.ceil(0.975 * (DRAWS - 1))]
    return list(zip(low.tolist(), high.tolist(), strict=True))


def sizes_around(batch: int) -> list[int]:
    """Samples of a step to measure, from a quarter of `batch` to four times of it.

    At least 2 where the run has 2: batch normalisation refuses a single sample.
    """
    least = min(2, batch)
    shares = (1 / 4, 1 / 2, 3 / 4, 1, 3 / 2, 2, 4)
    return sorted({max(least, round(share * batch)) for share in shares})


def held_out(batch: int, fitted: Sequence[int], most: int) -> int | None:
    """A size near 5/4 of `batch` that is not among `fitted`, at most `most`; None if there is none."""
    wanted = [size for size in range(min(fitted), most + 1) if size not in fitted]
    return min(wanted, key=lambda size: (abs(size - 5 / 4 * batch), -size), default=None)


def _over(above: float, below: float) -> float:
    return above / below if below > 0 else math.inf


# ------------------------------------------------------------------ devices


def jitter_fit(seconds: np.ndarray) -> tuple[str, float]:
    """The likeliest distribution that virtual time can draw, at its likeliest cv (at most `WIDEST`).

    `seconds` [ranks, steps]: of single steps of one size; factors are over a rank's mean. Steps that never
    differ have no jitter.
    """
    factors = (seconds / seconds.mean(1, keepdims=True)).ravel()
    if factors.std() < _NARROWEST_CV:
        return "none", 0.0
    fits = [
        (float(log_density(kind, cv, factors).mean()), kind, cv)
        for kind, widest in WIDEST.items()
        for cv in np.geomspace(_NARROWEST_CV, widest, _CVS).tolist()
    ]
    _, kind, cv = max(fits)
    return kind, cv


def log_density(kind: str, cv: float, factors: np.ndarray) -> np.ndarray:
    """The logarithm of the density of `factors` > 0 as `training.device_model.factors` draws them."""
    if kind == "lognormal":
        sigma = math.sqrt(math.log1p(cv * cv))
        return stats.lognorm.logpdf(factors, sigma, scale=math.exp(-sigma * sigma / 2))
    if kind == "gaussian":
        return stats.norm.logpdf(factors, 1, cv)
    return stats.t.logpdf(factors, 3, 1, cv / math.sqrt(3))


def rank_speeds(seconds: np.ndarray) -> tuple[float, ...] | None:
    """The speed of each rank, that of the median rank being 1; None if all are within `ODD_RANK`.

    `seconds` [rounds, ranks]: of a step.
    """
    medians = np.median(seconds, 0)
    speeds = np.median(medians) / medians
    if (np.abs(speeds - 1) <= ODD_RANK).all():
        return None
    return tuple(round(float(speed), 3) for speed in speeds)


def overlapped(forward: float, backward: float, ready: Sequence[float], sums: Sequence[float]) -> float:
    """Seconds during which sums run at the same time as the backward pass.

    Bucket i is ready after the share `ready[i]` of the backward pass; its sum takes `sums[i]` seconds and
    starts when the sum before it has ended. What runs after the end of the pass does not count.
    """
    ends, free, hidden = forward + backward, 0.0, 0.0
    for share, took in zip(ready, sums, strict=True):
        starts = max(free, forward + share * backward)
        free = starts + took
        hidden += max(0.0, min(free, ends) - starts)
    return hidden


def overlap_loss(stretched: float, hidden: float) -> float:
    """The share of `hidden` (seconds of sums during a pass) by which the pass grew (`stretched`), 0 to 1.

    0 where nothing was hidden: there it cannot be measured, and is not needed.
    """
    return min(1.0, max(0.0, stretched / hidden)) if hidden > 0 else 0.0
