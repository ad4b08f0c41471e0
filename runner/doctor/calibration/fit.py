"""Fits of a cluster's parameters to measured times, and the dataclasses that hold a calibration's results.

The first axis of every array is the round. A fit is made of medians over rounds, and its interval of medians
over rounds drawn with replacement (bootstrap, percentiles 2.5 and 97.5).
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from ...communication.link_costs import ring
from ...config.cluster import JITTERS

DRAWS = 400
ODD_RANK = 0.05  # ranks that differ more from the median rank have a speed of their own
TRUSTED = 0.15  # the largest error of a modelled step time that counts as validated
# The widest jitter that `cluster.device` accepts.
WIDEST = {"gaussian": 0.3, "lognormal": 1.0, "student_t3": 0.3}
_NARROWEST_CV, _CVS = 1e-4, 600

Interval = tuple[float, float]


@dataclass(frozen=True)
class Line:
    """t = fixed + slope · x in seconds, both at least 0. `clamped`: the one that was below 0, or "".

    `worst`: the largest relative error (fit over measured, minus 1), `worst_at`: the x where it is.
    """

    fixed: float
    slope: float
    clamped: str
    worst: float
    worst_at: float


@dataclass(frozen=True)
class StepFit:
    """The time of a step over its samples, with intervals of 95 %."""

    line: Line
    fixed_ms: Interval
    samples_per_second: Interval


@dataclass(frozen=True)
class LinkFit:
    """An all-reduce of two ranks: the latency of 2 messages, and the payload once over the link."""

    latency_us: float
    rate_gbit: float
    worst: float
    worst_at: int
    latency_interval: Interval
    rate_interval: Interval


@dataclass(frozen=True)
class JitterFit:
    """The distribution that fits the factors (of mean 1) best, at its best cv.

    `measured_cv`: standard deviation over mean, of the data. `log_likelihoods`: per step, by distribution.
    """

    kind: str
    cv: float
    measured_cv: float
    log_likelihoods: dict[str, float]


def line_through(x: Sequence[float], seconds: Sequence[float]) -> Line:
    """The line of least squares of relative errors: Σ ((fixed + slope·x - t) / t)² is smallest.

    Relative, so that a step of 1 ms and one of 100 ms are modelled equally well. A negative part is set to 0,
    and the other one is fitted alone.
    """
    xs, ts = np.asarray(x, float), np.asarray(seconds, float)
    ones, scaled = 1 / ts, xs / ts
    (fixed, slope), *_ = np.linalg.lstsq(np.stack([ones, scaled], 1), np.ones(len(ts)), rcond=None)
    clamped = "fixed" if fixed < 0 else "slope" if slope < 0 else ""
    if clamped == "fixed":
        fixed, slope = 0.0, scaled.sum() / (scaled**2).sum()
    elif clamped == "slope":
        fixed, slope = ones.sum() / (ones**2).sum(), 0.0
    errors = (fixed + slope * xs) / ts - 1
    place = int(np.abs(errors).argmax())
    return Line(float(fixed), float(slope), clamped, float(errors[place]), float(xs[place]))


def step_fit(samples: Sequence[int], seconds: np.ndarray) -> StepFit:
    """Fit the time of a step. `seconds` [rounds, sizes]: means over a round's steps and all ranks."""

    def parts(of_rounds: np.ndarray) -> tuple[float, float]:
        line = line_through(samples, np.median(of_rounds, 0).tolist())
        return line.fixed * 1e3, _over(1, line.slope)

    fixed, rate = bootstrap(seconds, parts)
    return StepFit(line_through(samples, np.median(seconds, 0).tolist()), fixed, rate)


def link_fit(payloads: Sequence[int], seconds: np.ndarray) -> LinkFit:
    """Fit a link. `seconds` [rounds, sizes]: of an all-reduce of `payloads` bytes over two ranks."""

    def parts(of_rounds: np.ndarray) -> tuple[float, float]:
        line = _link_line(payloads, of_rounds)
        return line.fixed * 1e6, _over(8e-9, line.slope)

    line = _link_line(payloads, seconds)
    latency, rate = bootstrap(seconds, parts)
    return LinkFit(line.fixed * 1e6, _over(8e-9, line.slope), line.worst, round(line.worst_at), latency, rate)


def _link_line(payloads: Sequence[int], seconds: np.ndarray) -> Line:
    """Seconds per message, and seconds per byte through the link."""
    messages, _ = ring("all_reduce", 2, 0)
    volumes = [ring("all_reduce", 2, payload)[1] for payload in payloads]
    line = line_through(volumes, np.median(seconds, 0).tolist())
    return Line(line.fixed / messages, line.slope, line.clamped, line.worst, line.worst_at)


def jitter_fit(seconds: np.ndarray) -> JitterFit:
    """Fit the jitter. `seconds` [ranks, steps]: of single steps of one size; factors are over a rank's mean.

    For each distribution that virtual time can draw, the cv (at most `WIDEST`) of largest likelihood; then
    the likeliest distribution. Steps that never differ have no jitter.
    """
    factors = (seconds / seconds.mean(1, keepdims=True)).ravel()
    measured = float(factors.std())
    if measured < _NARROWEST_CV:
        return JitterFit("none", 0.0, measured, {})
    best = {kind: _likeliest(kind, factors) for kind in JITTERS if kind in WIDEST}
    kind = max(best, key=lambda kind: best[kind][1])
    return JitterFit(kind, best[kind][0], measured, {name: value for name, (_, value) in best.items()})


def _likeliest(kind: str, factors: np.ndarray) -> tuple[float, float]:
    """The cv of largest mean log-likelihood, and that likelihood."""
    cvs = np.geomspace(_NARROWEST_CV, WIDEST[kind], _CVS)
    likelihoods = [float(log_density(kind, cv, factors).mean()) for cv in cvs.tolist()]
    place = int(np.argmax(likelihoods))
    return float(cvs[place]), likelihoods[place]


def log_density(kind: str, cv: float, factors: np.ndarray) -> np.ndarray:
    """The logarithm of the density of `factors` > 0 as `runner.device.factors` draws them."""
    if kind == "lognormal":
        variance = math.log1p(cv * cv)
        logs = np.log(factors)
        return -logs - 0.5 * np.log(2 * np.pi * variance) - (logs + variance / 2) ** 2 / (2 * variance)
    z = (factors - 1) / cv
    if kind == "gaussian":
        return -math.log(cv) - 0.5 * math.log(2 * math.pi) - z * z / 2
    # T = √3·z has 3 degrees of freedom: density 2 / (π·√3) · (1 + T²/3)^-2.
    return math.log(math.sqrt(3) / cv) + math.log(2 / (math.pi * math.sqrt(3))) - 2 * np.log1p(z * z)


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


def bootstrap(rounds: np.ndarray, parts: Callable[[np.ndarray], Sequence[float]]) -> list[Interval]:
    """95 % intervals of what `parts` makes of rounds (the first axis), drawn with replacement."""
    rng = np.random.default_rng(0)
    drawn = [parts(rounds[rng.integers(0, len(rounds), len(rounds))]) for _ in range(DRAWS)]
    columns = [sorted(column) for column in zip(*drawn, strict=True)]
    # By index, not interpolated: a rate may be infinite.
    low, high = math.floor(0.025 * (DRAWS - 1)), math.ceil(0.975 * (DRAWS - 1))
    return [(column[low], column[high]) for column in columns]


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


# ------------------------------------------------------------------ the results of a calibration


@dataclass(frozen=True, kw_only=True)
class About:
    """What was measured, and where. `batch`: samples of a rank's step. `accelerator`: None for CPUs."""

    command: str
    date: str
    processor: str
    cores: int
    accelerator: str | None
    torch: str
    threads: int
    model: str
    dataset: str
    batch: int
    ranks_of_nodes: tuple[int, ...]

    @property
    def ranks(self) -> int:
        return sum(self.ranks_of_nodes)


@dataclass(frozen=True, kw_only=True)
class Steps:
    """Seconds of steps of `sizes` samples, and the fits to them.

    `seconds` [rounds, sizes]: means over the ranks and a round's steps. `own` [ranks, steps]: single steps of
    the run's own size. `data_ms`: to get a batch.
    """

    sizes: tuple[int, ...]
    seconds: np.ndarray
    own: np.ndarray
    fit: StepFit
    forward_share: float
    jitter: JitterFit
    speeds: tuple[float, ...] | None
    data_ms: float


@dataclass(frozen=True, kw_only=True)
class LinkClass:
    """A class of links: the fit of sums after a step, which is written, and of sums back to back."""

    payloads: tuple[int, ...]
    rounds: int
    paused: LinkFit
    back_to_back: LinkFit


@dataclass(frozen=True, kw_only=True)
class Overlap:
    """`stretched_ms`: what sums add to forward and backward; `hidden_ms`: their time during backward."""

    loss: float
    interval: Interval
    stretched_ms: float
    hidden_ms: float
    rounds: int


@dataclass(frozen=True, kw_only=True)
class HoldOut:
    """Seconds of a step of ddp at a size that is in no fit: of each real run, and modelled.

    `drift`: by how much the step alone, timed once more after the runs, differs from the fitted one.
    """

    batch: int
    steps: int
    measured: tuple[float, ...]
    modelled: float
    drift: float

    @property
    def measured_s(self) -> float:
        """Of the median run."""
        return float(np.median(self.measured))

    @property
    def error(self) -> float:
        """Modelled over measured, minus 1."""
        return self.modelled / self.measured_s - 1

    @property
    def trusted(self) -> bool:
        """Whether the error is small enough."""
        return abs(self.error) <= TRUSTED


@dataclass(frozen=True, kw_only=True)
class Calibration:
    """All that goes into the file. `links`: by class (intra, inter), as far as the run has them."""

    about: About
    steps: Steps
    links: dict[str, LinkClass]
    overlap: Overlap | None
    hold_out: HoldOut | None = None
