"""Heterogeneous gradient computing: batches in proportion to the ranks' speeds, gradients weighted to match.

A rank on a slow device gets fewer samples of each global batch, so that all ranks end a step together, and
its gradient counts for as many samples as it came from. Every step is synchronous and averages gradients.

Update rule (b_r: rank r's samples in a full batch, n_r: in this step, g_r: its mean gradient, p_r: share):

    w_r = n_r / Σ n                    weighting samples: the gradient of the mean loss over all samples
    w_r = p_r / Σ_{q: n_q > 0} p_q     weighting speed
    w_r = 1 / |{q: n_q > 0}|           weighting uniform: the plain mean
    g = Σ_r w_r·g_r,   θ = optimizer(θ, g)

    shares: t_r(b) = a_r + c_r·b from measured steps; the T with Σ_r clip((T - a_r) / c_r) = B gives b_r

Bytes: as `ddp`, 2·(R-1)/R · 4m bytes per rank and step in a ring; some float64 numbers an epoch on top.

Paper: S. Moreno-Álvarez, M. E. Paoletti, J. A. Rico-Gallego, J. M. Haut, Heterogeneous gradient computing
optimization for scalable deep neural networks, Journal of Supercomputing (2022),
doi:10.1007/s11227-022-04399-2. Dynamic balancing: Q. Ye et al., DBS, arXiv:2007.11831.

Ours differs: this is an implementation after the abstract, which gives neither the weights nor how speeds are
measured. Weights by samples, calibration, limits and rounding are our choice. Batches are cut from common
global batches, so that the samples of a step do not depend on the shares. With batch normalisation a rank's
statistics depend on its batch size: then uneven batches are not the single process's training.
"""

import hashlib
import math
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from statistics import fmean, median, quantiles
from typing import Any

import torch
from torch import Tensor

from .base import Shares, Strategy
from .communicator import Communicator
from .errors import ConfigError, above, at_least, one_of
from .gradients import DEFAULT_BUCKET_MIB, by_samples, uniform
from .progress import Plan, Progress
from .replica import Replica
from .topology import WORLD

Limits = Sequence[tuple[int, int]]
"""Of each rank: the fewest and the most samples of a full batch."""

LEAST_GROWTH = 0.01  # of the mean time, over the measured sizes: a smaller slope is noise
SHORTEST_S = 1e-12  # least time of a step and of a sample: in virtual time it may be 0
WINDOW = 1000  # latest steps of an epoch, for its median times
WARMUP_STEPS, STEPS = 3, 10  # of a calibration, per size: undone steps, not timed and timed
PROBE_STEPS = 5  # timed undone steps of a probe, after `WARMUP_STEPS`
THRESHOLD = 0.05  # max t / mean t - 1 up to which shares stay


@dataclass(frozen=True, kw_only=True)
class HeterogeneousConfig:
    """The keys of `strategy=heterogeneous`; batches in samples."""

    weighting: str = "samples"  # w_r: samples | speed | uniform
    balancing: str = "static"  # equal | static | dynamic | manual
    shares: tuple[float, ...] | None = None  # with manual: one positive number per rank, on any scale
    max_batch: tuple[int, ...] | None = None  # most samples of a rank, one number or one per rank
    bucket_mib: float = DEFAULT_BUCKET_MIB  # of gradients per sum
    calibration_model: str = "affine"  # t = a + c·b; or proportional: t = c·b
    rebalance_timing: str = "probe"  # times: probe (undone steps) | forward (of the epoch's full steps)

    def __post_init__(self) -> None:
        one_of("strategy.weighting", self.weighting, ["samples", "speed", "uniform"])
        one_of("strategy.balancing", self.balancing, ["equal", "static", "dynamic", "manual"])
        one_of("strategy.calibration_model", self.calibration_model, ["affine", "proportional"])
        one_of("strategy.rebalance_timing", self.rebalance_timing, ["probe", "forward"])
        if (self.shares is not None) != (self.balancing == "manual"):
            raise ConfigError(
                f"strategy.balancing={self.balancing}, strategy.shares={_shown(self.shares)}: shares are "
                "given with manual, and only with manual"
            )
        for share in self.shares or ():
            above("strategy.shares", share, 0)
        for most in self.max_batch or ():
            at_least("strategy.max_batch", most, 1)
        above("strategy.bucket_mib", self.bucket_mib, 0)

    def limits(self, ranks: int, total: int, fewest: int = 1) -> list[tuple[int, int]]:
        """Of each rank the fewest and the most samples of a batch of `total`.

        `fewest`: what the model needs. Raises ConfigError: no batches within them sum to `total`.
        """
        given = self.max_batch
        if given is not None and len(given) not in (1, ranks):
            raise ConfigError(
                f"strategy.max_batch={_shown(given)}: must be one number or {ranks}, one for each rank"
            )
        most = [total] * ranks if given is None else given * ranks if len(given) == 1 else given
        highs = [min(number, total) for number in most]
        if fewest * ranks > total:
            raise ConfigError(
                f"train.global_batch_size={total}: {ranks} ranks with at least {fewest} samples each need "
                f"{fewest * ranks}"
            )
        if min(highs) < fewest or sum(highs) < total:
            raise ConfigError(
                f"strategy.max_batch={_shown(given)}: lets {ranks} ranks take {highs} samples, at least "
                f"{fewest} each and train.global_batch_size={total} together are needed"
            )
        return [(fewest, high) for high in highs]


@dataclass(frozen=True)
class Fit:
    """A rank's step time: `fixed` + `per_sample` · samples, in seconds."""

    fixed: float
    per_sample: float

    def seconds(self, samples: float) -> float:
        return self.fixed + self.per_sample * samples


def fit_affine(sizes: Sequence[float], times: Sequence[float]) -> Fit:
    """Least squares of t = a + c·b with a >= 0 and c > 0.

    Times that do not grow with the batch, or of a single size, do not determine c: then a = 0.
    """
    slope = _slope(sizes, times)
    fixed = fmean(times) - slope * fmean(sizes)
    if slope <= 0 or fixed < 0:
        fixed = 0.0
        slope = sum(b * t for b, t in zip(sizes, times, strict=True)) / sum(b * b for b in sizes)
    return Fit(fixed, max(slope, SHORTEST_S))


def fit_proportional(sizes: Sequence[float], times: Sequence[float]) -> Fit:
    """t = c·b with c the median of t / b."""
    slope = median(t / b for b, t in zip(sizes, times, strict=True))
    return Fit(0.0, max(slope, SHORTEST_S))


def grows(sizes: Sequence[int], times: Sequence[Sequence[float]]) -> bool:
    """Whether steps [size][step] of larger batches take longer, by more than steps of one size differ.

    The middle halves of each size's steps are compared. True for a single size.
    """
    medians = [median(steps) for steps in times]
    growth = _slope(sizes, medians) * (max(sizes) - min(sizes))
    spread = median(_middle_half(steps) for steps in times)
    return len(set(sizes)) == 1 or growth > max(spread, LEAST_GROWTH * fmean(medians))


def of_shares(shares: Sequence[float]) -> list[Fit]:
    """Ranks whose balanced batches are in proportion to `shares`."""
    return [Fit(0.0, 1 / share) for share in shares]


def balance(fits: Sequence[Fit], total: int, limits: Limits) -> list[float]:
    """Real batches that sum to `total` and all take the time T, except for those at a limit.

    T is found by bisection; `limits` must allow `total`.
    """

    def batches(time: float) -> list[float]:
        return [
            min(max((time - fit.fixed) / fit.per_sample, low), high)
            for fit, (low, high) in zip(fits, limits, strict=True)
        ]

    early = min(fit.seconds(low) for fit, (low, _) in zip(fits, limits, strict=True))
    late = max(fit.seconds(high) for fit, (_, high) in zip(fits, limits, strict=True))
    for _ in range(200):  # far beyond the bits of a float64, and the same number on all ranks
        middle = (early + late) / 2
        if sum(batches(middle)) < total:
            early = middle
        else:
            late = middle
    # The last bit of T may be many samples where a step takes long and a sample little: interpolate between
    # the two times to reach `total`.
    fewer, more = batches(early), batches(late)
    grown = sum(more) - sum(fewer)
    part = (total - sum(fewer)) / grown if grown else 0.0
    return [few + part * (many - few) for few, many in zip(fewer, more, strict=True)]


def to_integers(batches: Sequence[float], total: int, limits: Limits) -> tuple[int, ...]:
    """Whole numbers within `limits` that sum to `total`: rounded down, the rest by remainders.

    The largest come first. Remainders that differ by less than 1e-9 are ties, and go to the lower rank.
    """
    whole = [math.floor(number) for number in batches]
    left = total - sum(whole)
    order = sorted(range(len(whole)), key=lambda rank: (round(whole[rank] - batches[rank], 9), rank))
    step = 1 if left > 0 else -1  # batches that sum to more than `total`, by rounding, give some back
    while left:
        for rank in order if left > 0 else reversed(order):
            low, high = limits[rank]
            if left and low <= whole[rank] + step <= high:
                whole[rank] += step
                left -= step
    return tuple(whole)


def effective_batch(samples: Sequence[int], weights: Sequence[float]) -> float:
    """Samples of a batch whose mean gradient is as noisy as Σ w_r·g_r: 1 / Σ w_r²/n_r."""
    return 1 / sum(w * w / n for w, n in zip(weights, samples, strict=True) if n)


class Heterogeneous(Strategy):
    """All ranks compute the shares from the same gathered times, never from their own."""

    Config = HeterogeneousConfig
    config: HeterogeneousConfig
    tuned = (("balancing", ("static", "dynamic")), ("calibration_model", ("affine", "proportional")))
    caveats = (
        "Implemented after the abstract: weights by samples, calibration and rounding are ours.",
        "Say how the speeds came about: real devices, emulated ones, or a virtual clock.",
        "The global batch and the learning rate are constant; balancing changes neither.",
        "With BatchNorm a rank's statistics depend on its batch: uneven batches differ in more than weights.",
        "Uneven and plain mean take the same time a step: the paper's claim is about accuracy, and a "
        "difference is claimed only from several seeds with intervals.",
        "On equal devices it is ddp with a calibration.",
    )
    may_differ = ("strategy", "data.local_batch")
    remembers = (
        *("batches", "parts", "split_epoch", "trained", "calibration", "history", "measuring_s"),
        *("compute_s", "forward_s"),
    )

    @classmethod
    def check(cls, config: HeterogeneousConfig, plan: Plan) -> None:
        ranks = plan.topology.ranks
        if config.shares is not None and len(config.shares) != ranks:
            raise ConfigError(f"strategy.shares={_shown(config.shares)}: must be {ranks}, one for each rank")
        config.limits(ranks, plan.global_batch_size)

    def setup(self, replica: Replica, comm: Communicator, progress: Progress) -> None:
        self.replica, self.comm = replica, comm
        self.ranks = comm.topology.ranks
        norm = any(isinstance(m, torch.nn.modules.batchnorm._BatchNorm) for m in replica.model.modules())
        # A single sample has no variance to normalise by.
        self.fewest = 2 if norm and self.ranks > 1 else 1
        self.norm = norm
        self.batches: tuple[int, ...] = ()  # b_r; empty until `shares` is asked
        self.parts = [1 / self.ranks] * self.ranks  # p_r
        self.split_epoch = -1  # the epoch that `batches` were chosen for
        self.calibration: dict[str, Any] | None = None
        self.history: list[dict[str, Any]] = []  # an entry per rebalancing, whether or not it changed shares
        self.measuring_s = 0.0
        # The batches that this epoch's BatchNorm statistics came from: a model may be made of them when the
        # next epoch's batches are already set.
        self.trained: tuple[int, ...] = ()
        self.compute_ns: deque[int] = deque(maxlen=WINDOW)  # of this rank, in full steps of the epoch
        self.forward_ns: deque[int] = deque(maxlen=WINDOW)
        self.compute_s: list[float] = []  # medians of all ranks, of the epoch before; empty: no full step
        self.forward_s: list[float] = []
        replica.average_gradients_over(
            WORLD,
            weights=self._weights,
            scale="bucket",
            bucket_mib=self.config.bucket_mib,
        )

    def shares(self, progress: Progress) -> Shares:
        if progress.epoch != self.split_epoch:
            total = progress.global_batch_size
            if not self.batches:
                self._split(self._first_fits(total), total)
            elif self.config.balancing == "dynamic" and self.ranks > 1:
                self._rebalance(progress.epoch, total)
            self.split_epoch = progress.epoch
        return Shares(self.batches, self.fewest)

    def before_step(self, progress: Progress) -> None:
        self.trained = self.batches
        self._note_times()

    def after_epoch(self, progress: Progress) -> None:
        self.replica.wait_pending()  # all ranks have the same steps, on GPUs too
        self._note_times()
        self.compute_s, self.forward_s = [], []
        if self.compute_ns:  # equal steps on all ranks: all have some, or none
            medians = [median(self.compute_ns) / 1e9, median(self.forward_ns) / 1e9]
            by_rank = self.comm.gather(torch.tensor(medians, dtype=torch.float64))
            self.compute_s, self.forward_s = by_rank.T.tolist()
        self.compute_ns.clear()
        self.forward_ns.clear()

    @contextmanager
    def averaged_model(self) -> Iterator[None]:
        """Floating-point buffers are weighted by b_r / B."""
        with self.replica.averaged_buffers(self.comm, self._part_of_buffers()):
            yield

    def snapshot(self, progress: Progress) -> Callable[[], Tensor]:
        parameters = self.replica.flat()  # equal on all ranks
        part = (self.replica.buffers.pack() * self._part_of_buffers()).to(parameters.dtype)

        def assemble() -> Tensor:
            buffers = part.clone()
            if len(buffers):
                self.comm.all_reduce(buffers, WORLD).wait()
            return torch.cat([parameters, buffers])

        return assemble

    def state_dict(self) -> dict[str, Any]:
        times = torch.tensor([list(self.compute_ns), list(self.forward_ns)], dtype=torch.int64)
        return {**super().state_dict(), "times_ns": times}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        for times, saved in zip((self.compute_ns, self.forward_ns), state["times_ns"].tolist(), strict=True):
            times.extend(saved)

    def record(self, progress: Progress) -> dict[str, Any]:
        rank, times, last = self.comm.rank, self.compute_s, progress.samples_of_rank
        row: dict[str, Any] = {
            "share": self.parts[rank],
            "batches": list(self.batches),
            "samples_of_last_step": last[rank],
            "weight_of_last_step": self._weights(last)[rank],
            "effective_batch": effective_batch(self.batches, self._weights(self.batches)),
            "compute_s": times[rank] if times else None,
            "idle_s": max(times) - times[rank] if times else None,
            "use": 1 / _imbalance(times) if times else None,
        }
        if self.history and self.history[-1]["epoch"] == progress.epoch:
            row["rebalance"] = self.history[-1]
        if self.calibration is not None and progress.epoch == 0:
            row["calibration"] = {
                key: values if key == "model" else values[rank] for key, values in self.calibration.items()
            }
        return row

    def summary(self) -> dict[str, Any]:
        return {
            "batches": list(self.batches),
            "shares": self.parts,
            "calibration": self.calibration
            and {key: values for key, values in self.calibration.items() if key != "times_s"},
            "measuring_s": self.measuring_s,
            "looks": len(self.history),
            "rebalances": [look for look in self.history if look["new"] != look["old"]],
        }

    def labels(self, target_step: int | None) -> list[str]:
        remarks = []
        if self.calibration is not None and self.calibration["model"] != self.config.calibration_model:
            remarks.append("step times hardly grow with the batch: shares by time per sample")
        if max(self.batches) - min(self.batches) <= 1:
            if self.config.balancing != "equal" and self.ranks > 1:
                remarks.append("heterogeneous with equal batches")
            return remarks
        if self.config.weighting == "uniform":
            noisy = effective_batch(self.batches, self._weights(self.batches))
            remarks.append(
                f"plain mean over uneven batches: {sum(self.batches)} samples, as noisy as {noisy:.1f}"
            )
        if self.norm:
            remarks.append("batch normalisation over uneven batches: not the training of equal ones")
        return remarks

    # ---------------------------------------------------------------- shares

    def _note_times(self) -> None:
        for step in self.replica.take_times():
            if step.samples_of_rank == self.batches:
                self.compute_ns.append(step.compute_ns)
                self.forward_ns.append(step.forward_ns)

    def _weights(self, samples: Sequence[int]) -> list[float]:
        if self.config.weighting == "samples":
            return by_samples(samples)
        if self.config.weighting == "uniform":
            return uniform(samples)
        active = sum(part for part, n in zip(self.parts, samples, strict=True) if n)
        return [part / active if n else 0.0 for part, n in zip(self.parts, samples, strict=True)]

    def _part_of_buffers(self) -> float:
        return self.trained[self.comm.rank] / sum(self.trained) if self.trained else 1 / self.ranks

    def _first_fits(self, total: int) -> list[Fit]:
        if self.config.balancing == "static" and self.ranks > 1:
            return self._calibrate(total)
        return of_shares(self.config.shares or [1.0] * self.ranks)

    def _split(self, fits: Sequence[Fit], total: int) -> None:
        """Adopt the batches that balance `fits`, and make sure that all ranks did."""
        limits = self.config.limits(self.ranks, total, self.fewest)
        real = balance(fits, total, limits)
        self.batches = to_integers(real, total, limits)
        self.parts = [batch / total for batch in real]
        digest = hashlib.blake2b(repr((self.batches, self.parts)).encode(), digest_size=8).digest()
        number = torch.tensor([int.from_bytes(digest, "big") >> 1])
        if len(self.comm.gather(number).unique()) > 1:
            raise RuntimeError("ranks computed different shares from the same times")

    def _calibrate(self, total: int) -> list[Fit]:
        """Each rank's fit, from steps of several sizes on all ranks at the same time."""
        config = self.config
        limits = config.limits(self.ranks, total, self.fewest)
        # The batch sizes to time, equally many on all ranks, which wait for each other before each size.
        usual = [min(max(total / self.ranks, low), high) for low, high in limits]
        sizes = [
            [min(max(round(samples), low), high) for samples in (piece / 2, piece, 2 * piece)]
            for piece, (low, high) in zip(usual, limits, strict=True)
        ]
        times = self._time(sizes[self.comm.rank], STEPS)
        medians = [[median(steps) for steps in of_rank] for of_rank in times]
        affine = config.calibration_model == "affine"
        # With noise as slope one rank could get all samples by chance; and lines through 0 cannot be balanced
        # with other lines.
        sloped = affine and all(grows(b, t) for b, t in zip(sizes, times, strict=True))
        fit_of: Callable[[Sequence[float], Sequence[float]], Fit] = fit_affine if sloped else fit_proportional
        fits = [fit_of(b, t) for b, t in zip(sizes, medians, strict=True)]
        self.calibration = {
            "model": "affine" if sloped else "proportional",
            "sizes": sizes,
            "times_s": times,
            "medians_s": medians,
            "fixed_s": [fit.fixed for fit in fits],
            "per_sample_s": [fit.per_sample for fit in fits],
            "residuals_s": [
                [t - fit.seconds(b) for b, t in zip(of_rank, measured, strict=True)]
                for fit, of_rank, measured in zip(fits, sizes, medians, strict=True)
            ],
        }
        return fits

    def _rebalance(self, epoch: int, total: int) -> None:
        old = self.batches
        if self.config.rebalance_timing == "probe":
            times = [median(steps) for (steps,) in self._time([old[self.comm.rank]], PROBE_STEPS)]
        else:
            times = self.forward_s
        if not times:  # the epoch had no full step to time
            return
        ratio = _imbalance(times)
        if ratio > 1 + THRESHOLD:
            speeds = [batch / max(time, SHORTEST_S) for batch, time in zip(old, times, strict=True)]
            together = sum(speeds)
            self._split(of_shares([speed / together for speed in speeds]), total)
        look = {"epoch": epoch, "times_s": times, "ratio": ratio, "old": list(old), "new": list(self.batches)}
        self.history.append(look)

    def _time(self, sizes: Sequence[int], steps: int) -> list[list[list[float]]]:
        """Seconds of `steps` steps of each of this rank's `sizes`, of all ranks: [rank][size][step].

        Ranks meet before each size, so that all are busy at once, and nothing that is timed waits for others.
        """
        entered, seconds = self.comm.now(), list[float]()
        for size in sizes:
            self.comm.barrier(WORLD)
            seconds += self.replica.time_steps(size, WARMUP_STEPS + steps)[WARMUP_STEPS:]
        by_rank = self.comm.gather(torch.tensor(seconds, dtype=torch.float64))
        self.measuring_s += (self.comm.now() - entered) / 1e9
        return by_rank.view(self.ranks, len(sizes), steps).tolist()


def _slope(sizes: Sequence[float], times: Sequence[float]) -> float:
    """The slope of the best line through the times; 0 for a single size."""
    size, time = fmean(sizes), fmean(times)
    spread = sum((b - size) ** 2 for b in sizes)
    return sum((b - size) * (t - time) for b, t in zip(sizes, times, strict=True)) / spread if spread else 0.0


def _middle_half(values: Sequence[float]) -> float:
    """The distance between the first and the third quartile."""
    low, _, high = quantiles(values, n=4, method="inclusive")
    return high - low


def _imbalance(times: Sequence[float]) -> float:
    """max t / mean t; 1 where no time has passed."""
    return max(times) / fmean(times) if max(times) > 0 else 1.0


def _shown(values: Sequence[float] | None) -> str:
    return "null" if values is None else str(list(values))
