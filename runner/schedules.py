"""Learning-rate schedules as pure functions of *global samples*, so that all ranks compute the same factor.

Each has `factor(samples, total_samples, samples_per_epoch)`: what the optimizer's base learning rate is
multiplied by for the step that brings the run to `samples` (this step's samples included, so the first step
of a warm-up does not have learning rate 0). `total_samples` is the run's budget. Every schedule starts with a
linear warm-up of `warmup_epochs` (Goyal et al. 2017, arXiv:1706.02677).
"""

import math
from dataclasses import dataclass

from ..strategies.errors import ConfigError, above, at_least, within


@dataclass(frozen=True, kw_only=True)
class Constant:
    """The base learning rate throughout."""

    warmup_epochs: float = 0.0

    def __post_init__(self) -> None:
        _finite_warmup(self.warmup_epochs)

    def first_decay(self, total_samples: int, samples_per_epoch: int) -> int | None:
        """Global samples behind which a step first lowers the rate; None where none does."""
        return None

    def factor(self, samples: int, total_samples: int, samples_per_epoch: int) -> float:
        """In [0, 1]: 1 once the warm-up is over."""
        return _warmup(samples, self.warmup_epochs * samples_per_epoch)


@dataclass(frozen=True, kw_only=True)
class Step:
    """Multiplied by `decay` at each of `milestones`, fractions of the run's samples in ascending order."""

    warmup_epochs: float = 0.0
    milestones: tuple[float, ...] = (0.5, 0.75)
    decay: float = 0.1

    def __post_init__(self) -> None:
        _finite_warmup(self.warmup_epochs)
        above("schedule.decay", self.decay, 0)
        within("schedule.decay", self.decay, 0, 1)
        for milestone in self.milestones:
            within("schedule.milestones", milestone, 0, 1)
        if list(self.milestones) != sorted(set(self.milestones)):
            raise ConfigError(f"schedule.milestones={list(self.milestones)}: must ascend")

    def first_decay(self, total_samples: int, samples_per_epoch: int) -> int | None:
        """Global samples behind which a step first lowers the rate: the first milestone."""
        return math.floor(self.milestones[0] * total_samples) if self.milestones else None

    def factor(self, samples: int, total_samples: int, samples_per_epoch: int) -> float:
        """In [0, 1]: decay to the power of the milestones *behind* `samples`, times the warm-up."""
        passed = sum(samples > milestone * total_samples for milestone in self.milestones)
        return _warmup(samples, self.warmup_epochs * samples_per_epoch) * self.decay**passed


@dataclass(frozen=True, kw_only=True)
class Cosine:
    """Half a cosine from 1 at the end of the warm-up to `final` at the end of the run.

    Loshchilov and Hutter 2017 (arXiv:1608.03983), without restarts. `final` is a fraction of the base rate.
    """

    warmup_epochs: float = 1.0
    final: float = 0.0

    def __post_init__(self) -> None:
        _finite_warmup(self.warmup_epochs)
        within("schedule.final", self.final, 0, 1)

    def first_decay(self, total_samples: int, samples_per_epoch: int) -> int | None:
        """None: it lowers the rate all the time."""
        return None

    def factor(self, samples: int, total_samples: int, samples_per_epoch: int) -> float:
        """In [0, 1]: warm-up, then monotonically down to `final`, which holds beyond `total_samples`."""
        warmup_samples = self.warmup_epochs * samples_per_epoch
        if samples < warmup_samples:
            return _warmup(samples, warmup_samples)
        length = total_samples - warmup_samples
        done = min(1.0, (samples - warmup_samples) / length) if length > 0 else 0.0
        return self.final + (1 - self.final) * 0.5 * (1 + math.cos(math.pi * done))


@dataclass(frozen=True, kw_only=True)
class Polynomial:
    """(1 - progress) to the power of `power`, from 1 at the end of the warm-up to 0 at the end of the run.

    With power 2 the schedule that large-batch training with LARS uses (You et al. 2017, arXiv:1708.03888).
    """

    warmup_epochs: float = 5.0
    power: float = 2.0

    def __post_init__(self) -> None:
        _finite_warmup(self.warmup_epochs)
        above("schedule.power", self.power, 0)

    def first_decay(self, total_samples: int, samples_per_epoch: int) -> int | None:
        """None: it lowers the rate all the time."""
        return None

    def factor(self, samples: int, total_samples: int, samples_per_epoch: int) -> float:
        """In [0, 1]: warm-up, then monotonically down to 0 at `total_samples`."""
        warmup_samples = self.warmup_epochs * samples_per_epoch
        if samples < warmup_samples:
            return _warmup(samples, warmup_samples)
        length = total_samples - warmup_samples
        done = min(1.0, (samples - warmup_samples) / length) if length > 0 else 0.0
        return (1 - done) ** self.power


def _warmup(samples: int, warmup_samples: float) -> float:
    return min(1.0, samples / warmup_samples) if warmup_samples > 0 else 1.0


def _finite_warmup(warmup_epochs: float) -> None:
    at_least("schedule.warmup_epochs", warmup_epochs, 0)
    if math.isinf(warmup_epochs):
        raise ConfigError(f"schedule.warmup_epochs={warmup_epochs}: must be finite")
