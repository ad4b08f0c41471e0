"""Learning-rate schedules as pure functions of *global samples*, so that all ranks compute the same factor.

A warm-up goes by the samples after a step and a decay over the whole run by those before it, as in PyTorch's
schedulers, so that neither the first step nor the last one has learning rate 0. Every schedule starts with a
linear warm-up of `warmup_epochs` (Goyal et al. 2017, arXiv:1706.02677).
"""

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from typing import ClassVar

from ...strategies.errors import ConfigError, above, at_least, within


@dataclass(frozen=True, kw_only=True)
class Watch:
    """What a plateau schedule remembers: part of every checkpoint, equal on all ranks.

    best: smallest loss so far; waited: epochs since then, as far as they count; cooling: epochs to come that
    do not count; factor: what the rate is multiplied by.
    """

    best: float = math.inf
    waited: int = 0
    cooling: int = 0
    factor: float = 1.0


class Schedule(ABC):
    """The keys of a schedule: a frozen, keyword-only dataclass that checks them in `__post_init__`.

    A new one is a subclass with the key `warmup_epochs` and the method `factor`, and
    conf/schedule/NAME.yaml with `_target_` and every key. One with `reads_epoch_loss` has `after_epoch`,
    which gets the training loss of each epoch over all ranks; the `factor` of the `Watch` that it returns
    multiplies that of the schedule.
    """

    warmup_epochs: float
    reads_epoch_loss: ClassVar[bool] = False

    def first_decay(self, total_samples: int, samples_per_epoch: int) -> int | None:
        """Global samples behind which a step first lowers the rate; None where no step does, each does, or
        it is not known before."""
        return None

    @abstractmethod
    def factor(self, before: int, after: int, total_samples: int, samples_per_epoch: int) -> float:
        """The multiple of the optimizer's base learning rate, in [0, 1], for the step that brings the run
        from `before` samples to `after`; `total_samples` is the run's budget."""

    def after_epoch(self, watch: Watch, loss: float) -> Watch:
        """What is known of the loss after an epoch; called of schedules with `reads_epoch_loss` alone."""
        return watch


@dataclass(frozen=True, kw_only=True)
class Constant(Schedule):
    """The base learning rate throughout."""

    warmup_epochs: float = 0.0

    def __post_init__(self) -> None:
        _finite_warmup(self.warmup_epochs)

    def factor(self, before: int, after: int, total_samples: int, samples_per_epoch: int) -> float:
        return _warmup(after, self.warmup_epochs * samples_per_epoch)


@dataclass(frozen=True, kw_only=True)
class Step(Schedule):
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
        return math.floor(self.milestones[0] * total_samples) if self.milestones else None

    def factor(self, before: int, after: int, total_samples: int, samples_per_epoch: int) -> float:
        passed = sum(after > milestone * total_samples for milestone in self.milestones)
        return _warmup(after, self.warmup_epochs * samples_per_epoch) * self.decay**passed


@dataclass(frozen=True, kw_only=True)
class Cosine(Schedule):
    """Half a cosine from 1 at the end of the warm-up to `final` at the end of the run.

    Loshchilov and Hutter 2017 (arXiv:1608.03983), without restarts. `final` is a fraction of the base rate.
    """

    warmup_epochs: float = 1.0
    final: float = 0.0

    def __post_init__(self) -> None:
        _finite_warmup(self.warmup_epochs)
        within("schedule.final", self.final, 0, 1)

    def factor(self, before: int, after: int, total_samples: int, samples_per_epoch: int) -> float:
        """Of n equal steps without warm-up, step k has (1 + cos(π·k/n)) / 2, k from 0, as torch's."""
        warmup_samples = self.warmup_epochs * samples_per_epoch
        if after < warmup_samples:
            return _warmup(after, warmup_samples)
        done = _decayed(before, warmup_samples, total_samples)
        return self.final + (1 - self.final) * 0.5 * (1 + math.cos(math.pi * done))


@dataclass(frozen=True, kw_only=True)
class Polynomial(Schedule):
    """(1 - progress) to the power of `power`, from 1 at the end of the warm-up to 0 at the end of the run.

    With power 2 the schedule that large-batch training with LARS uses (You et al. 2017, arXiv:1708.03888).
    """

    warmup_epochs: float = 5.0
    power: float = 2.0

    def __post_init__(self) -> None:
        _finite_warmup(self.warmup_epochs)
        above("schedule.power", self.power, 0)

    def factor(self, before: int, after: int, total_samples: int, samples_per_epoch: int) -> float:
        """Of n equal steps without warm-up, step k has (1 - k/n)^power, k from 0, as torch's."""
        warmup_samples = self.warmup_epochs * samples_per_epoch
        if after < warmup_samples:
            return _warmup(after, warmup_samples)
        return (1 - _decayed(before, warmup_samples, total_samples)) ** self.power


@dataclass(frozen=True, kw_only=True)
class Plateau(Schedule):
    """Multiplied by `decay` when the training loss has not improved for more than `patience` epochs.

    The loss is the mean over all samples and ranks of an epoch; it improves when it is below
    (1 - threshold) times the best so far. `cooldown`: epochs after a drop that are not counted; `final`: the
    smallest fraction of the base rate. It decides as torch's ReduceLROnPlateau does (mode min, threshold_mode
    rel). Costs one sum of two numbers over all ranks an epoch, at which they wait for one another.
    """

    warmup_epochs: float = 0.0
    decay: float = 0.1
    patience: int = 2
    threshold: float = 1e-4
    cooldown: int = 0
    final: float = 0.0

    reads_epoch_loss: ClassVar[bool] = True

    def __post_init__(self) -> None:
        _finite_warmup(self.warmup_epochs)
        above("schedule.decay", self.decay, 0)
        within("schedule.decay", self.decay, 0, 1)
        at_least("schedule.patience", self.patience, 0)
        if not 0 <= self.threshold < 1:
            raise ConfigError(
                f"schedule.threshold={self.threshold}: must be >= 0 and < 1 (a share of the best loss; by "
                "all of it no loss can improve)"
            )
        at_least("schedule.cooldown", self.cooldown, 0)
        within("schedule.final", self.final, 0, 1)

    def factor(self, before: int, after: int, total_samples: int, samples_per_epoch: int) -> float:
        return _warmup(after, self.warmup_epochs * samples_per_epoch)

    def after_epoch(self, watch: Watch, loss: float) -> Watch:
        if loss < watch.best * (1 - self.threshold):
            watch = replace(watch, best=loss, waited=0)
        else:
            watch = replace(watch, waited=watch.waited + 1)
        if watch.cooling:
            watch = replace(watch, cooling=watch.cooling - 1, waited=0)
        if watch.waited <= self.patience:
            return watch
        factor = max(watch.factor * self.decay, self.final)
        return replace(watch, factor=factor, cooling=self.cooldown, waited=0)


def _warmup(samples: int, warmup_samples: float) -> float:
    return min(1.0, samples / warmup_samples) if warmup_samples > 0 else 1.0


def _decayed(samples: int, warmup_samples: float, total_samples: int) -> float:
    """The share of what comes after the warm-up that is done, in [0, 1]."""
    length = total_samples - warmup_samples
    return min(1.0, max(0.0, samples - warmup_samples) / length) if length > 0 else 0.0


def _finite_warmup(warmup_epochs: float) -> None:
    at_least("schedule.warmup_epochs", warmup_epochs, 0)
    if math.isinf(warmup_epochs):
        raise ConfigError(f"schedule.warmup_epochs={warmup_epochs}: must be finite")
