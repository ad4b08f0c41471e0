"""Device model: a rank's step times in virtual time, from a model's FLOPs and a description of the device."""

import csv
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from ...datasets.stream_seeds import stream_seed
from ...models.spec import InputSpec
from ...strategies.errors import ConfigError
from ...strategies.gradients import DEFAULT_BUCKET_MIB
from ..config.cluster import DeviceConfig

StepTime = Callable[[int, int], int]
"""(rank, samples) -> nanoseconds of forward and backward."""

FIRST_BUCKET_BYTES = 2**20
SHORTEST = 0.05  # of the mean step time: no jitter makes a step shorter
_BLOCK = 256  # numbers drawn at a time


@dataclass(frozen=True)
class Profile:
    """What the device model has to know of a model.

    flops: of the forward pass of one sample. numels: of the trainable parameters, in order. ready: of each
    parameter, the share of the backward pass after which its gradient is complete; backward goes from the
    last parameter to the first.
    """

    flops: float
    numels: tuple[int, ...]
    ready: tuple[float, ...]

    @classmethod
    def by_size(cls, numels: Sequence[int], flops: float = 0.0) -> "Profile":
        """The profile of a model of which only sizes are known: time is in proportion to them."""
        return cls(flops, tuple(numels), _ready(numels))

    @classmethod
    def of(cls, build: Callable[[], nn.Module], spec: InputSpec) -> "Profile":
        """The profile of the module that `build` makes, on the meta device where the module allows that.

        A layer's share of the backward pass is its share of the forward pass's operations. Its weights divide
        it in the ratio of their sizes; operations of layers without weights are left out.
        """
        try:
            with torch.device("meta"):
                model = build()
        except (NotImplementedError, RuntimeError):  # some modules compute their widths with tensors
            model = build().to("meta")
        counter = FlopCounterMode(display=False)
        with torch.device("meta"), torch.no_grad(), counter:
            model.train()(torch.empty(2, spec.channels, spec.height, spec.width))
        root = type(model).__name__
        within = {name: sum(ops.values()) for name, ops in counter.get_flop_counts().items()}
        places: dict[nn.Parameter, int] = {}
        weights = []
        for name, module in model.named_modules():
            path = f"{root}.{name}" if name else root
            inside = sum(within.get(f"{path}.{child}", 0) for child, _ in module.named_children())
            flops = within.get(path, 0) - inside
            parameters = [p for _, p in module.named_parameters(recurse=False) if p not in places]
            # A bias takes no time.
            total = sum(p.numel() for p in parameters if p.dim() > 1) or 1
            for parameter in parameters:
                places[parameter] = len(weights)
                weights.append(flops * parameter.numel() / total if parameter.dim() > 1 else 0.0)
        trained = [p for p in model.parameters() if p.requires_grad]
        numels = [p.numel() for p in trained]
        if not sum(weights):
            weights = [float(p.numel()) for p in places]
        # Backward goes through frozen layers too, but ends with the first layer that is not.
        first = places[trained[0]] if trained else 0
        ready = _ready([0.0] * first + weights[first:])
        flops = counter.get_total_flops() / 2
        shares = tuple(ready[places[p]] for p in trained)
        return cls(float(flops), tuple(numels), shares)

    def buckets(self, itemsize: int, mib: float) -> list[tuple[int, int]]:
        """DDP's buckets as parameters [first, last), from the last parameters to the first.

        `itemsize`: bytes of an element. A bucket is closed by the parameter that fills it. With the default
        size PyTorch makes the first bucket small, so that the first sum starts early.
        """
        full = int(mib * 2**20)
        limit = FIRST_BUCKET_BYTES if mib == DEFAULT_BUCKET_MIB else full
        buckets, last, filled = [], len(self.numels), 0
        for place in reversed(range(len(self.numels))):
            filled += self.numels[place] * itemsize
            if filled >= limit or place == 0:
                buckets.append((place, last))
                last, filled, limit = place, 0, full
        return buckets


class Device:
    """A rank's device in virtual time: a function gives its step times, and nothing else takes time.

    `drawn`: steps so far, the position in its stream of jitter.
    """

    drawn: int = 0
    overlap_loss: float = 0.0  # share of the time of sums under backward that is added to backward
    bucket_ns: int = 0  # of the backward pass, for each bucket whose sum is started

    def __init__(self, rank: int, step_time: StepTime) -> None:
        self._rank, self._step_time = rank, step_time

    def step_ns(self, samples: int) -> tuple[int, int]:
        """Nanoseconds of the next step's forward and backward pass."""
        took = self._step_time(self._rank, samples)
        return took // 3, took - took // 3

    def spend_ns(self, what: str, samples: int = 0) -> int:
        """Nanoseconds of other work: `data` of a step, `eval` of `samples`, `checkpoint`."""
        return 0


class ClusterDevice(Device):
    def __init__(self, config: DeviceConfig, rank: int, profile: Profile, seed: int) -> None:
        self._config = config
        self.overlap_loss = config.overlap_loss
        self.bucket_ns = round(config.bucket_us * 1e3)
        self._sample_s = 0.0
        if config.samples_per_second is not None:
            self._sample_s = 1 / config.samples_per_second
        elif config.tflops is not None:
            self._sample_s = 3 * profile.flops / (config.tflops * 1e12)
        self._speed = 1.0 if config.speeds is None else config.speeds[rank]
        self._rank, self._seed = rank, stream_seed(seed, "jitter", rank)
        self._factors: tuple[int, Sequence[float]] = (-1, ())
        self._trace = () if config.trace is None else read_trace(Path(config.trace), rank)

    def step_ns(self, samples: int) -> tuple[int, int]:
        config, step = self._config, self.drawn
        self.drawn += 1
        if self._trace:
            seconds = self._trace[step % len(self._trace)]  # it has the rank's speed and jitter
        else:
            whole = config.fixed_ms / 1e3 + samples * self._sample_s
            seconds = whole * self._jitter(step) / self._speed
        if config.straggler.slows(self._rank, step):  # added to a trace too
            seconds *= config.straggler.times
        total = round(seconds * 1e9)
        forward = round(total * config.forward_share)
        return forward, total - forward

    def spend_ns(self, what: str, samples: int = 0) -> int:
        seconds = {
            "data": self._config.input_stall_ms / 1e3,
            "eval": samples * self._sample_s * self._config.forward_share / self._speed,
            "checkpoint": self._config.checkpoint_s,
        }[what]
        return round(seconds * 1e9)

    def _jitter(self, step: int) -> float:
        """A factor of mean 1 and deviation `jitter_cv`, the same for the same seed, rank and step."""
        if self._config.jitter == "none" or self._config.jitter_cv == 0:
            return 1.0
        block = step // _BLOCK
        if self._factors[0] != block:
            rng = np.random.default_rng([self._seed, block])
            self._factors = (block, factors(self._config.jitter, self._config.jitter_cv, rng).tolist())
        return self._factors[1][step % _BLOCK]


def factors(kind: str, cv: float, rng: np.random.Generator, size: int = _BLOCK) -> np.ndarray:
    """`size` factors of mean 1 and coefficient of variation `cv`, none below `SHORTEST`.

    Student's t with 3 degrees of freedom has tails so heavy that one step in a hundred is 2.6 standard
    deviations from the mean, and single steps ten; only its mean and variance exist.
    """
    if kind == "lognormal":
        sigma = math.sqrt(math.log1p(cv * cv))
        return np.maximum(rng.lognormal(-sigma * sigma / 2, sigma, size), SHORTEST)
    drawn = rng.standard_normal(size) if kind == "gaussian" else rng.standard_t(3, size) / math.sqrt(3)
    return np.maximum(1 + cv * drawn, SHORTEST)


def read_trace(path: Path, rank: int) -> tuple[float, ...]:
    """Seconds of `rank`'s steps in a CSV file with the columns rank and step_s. Raises ConfigError."""
    where = f"cluster.device.trace={path}"
    try:
        seconds = _steps_of_ranks(path, path.stat().st_mtime_ns).get(rank, ())
    except OSError as error:
        raise ConfigError(f"{where}: cannot be read: {error.strerror}") from error
    except (KeyError, ValueError, TypeError, csv.Error) as error:
        raise ConfigError(f"{where}: must have the columns rank and step_s, numbers in both") from error
    if not seconds or not all(0 <= value < math.inf for value in seconds):
        raise ConfigError(f"{where}: must have step times of rank {rank}, seconds >= 0")
    return seconds


@lru_cache(maxsize=1)
def _steps_of_ranks(path: Path, written_ns: int) -> dict[int, tuple[float, ...]]:
    """Seconds of all ranks' steps; cached, since each of a thousand ranks reads the file."""
    steps_s: dict[int, list[float]] = {}
    with open(path, newline="", encoding="utf-8") as file:
        for row in csv.DictReader(file):
            steps_s.setdefault(int(row["rank"]), []).append(float(row["step_s"]))
    return {rank: tuple(seconds) for rank, seconds in steps_s.items()}


def _ready(weights: Sequence[float]) -> tuple[float, ...]:
    total = float(sum(weights)) or 1.0
    behind, shares = 0.0, []
    for weight in reversed(weights):
        behind += weight
        shares.append(min(1.0, behind / total))
    return tuple(reversed(shares))
