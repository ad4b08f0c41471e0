"""Simulation of times alone: no gradients are computed, so models and clusters can have any size.

Trainer, strategy and network are the usual ones. A vector of a few thousand zeros stands for the model, and
its bytes are scaled to the model's size; messages of a few numbers (counts, stop requests) and the control
channel are not scaled. Step times and buckets are those of the model. There is no accuracy, and the loss
falls in every step, so that schedules never see a plateau.
"""

import dataclasses
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor, nn

from ...datasets.data import Data, Split
from ...models.spec import InputSpec, Model, Sized
from ...strategies.errors import ConfigError
from ...strategies.gradients import DEFAULT_BUCKET_MIB
from ...strategies.replica import Batch
from ..config.model_building import build
from ..config.optimizers import Optimizer
from ..config.run_config import RunConfig
from ..training.device_model import Profile
from .simulated_replica import Begun, SimulatedReplica

NUMBERS, OF_BUCKET = 4096, 64  # of the stand-in, at least; of a bucket on average
NO_STOP_FLAG = torch.zeros(1)
REMARK = "timing only: no numbers, no accuracy, a loss that always falls"


def profile_of(config: RunConfig, spec: InputSpec) -> Profile:
    """The profile of the run's model, without memory for its numbers."""
    if isinstance(config.model, Sized):
        return Profile.by_size(config.model.numels(), config.model.gflops * 1e9)
    device = config.cluster.device
    try:
        profile = Profile.of(lambda: build(config.model, spec), spec)
    except (RuntimeError, NotImplementedError) as error:  # a model may look at its numbers
        if device.tflops is not None:
            raise ConfigError(
                f"cluster.device.tflops={device.tflops}: the model's operations cannot be counted "
                f"({str(error).splitlines()[0]}); set cluster.device.samples_per_second instead"
            ) from error
        return Profile.by_size([p.numel() for p in build(config.model, spec).parameters() if p.requires_grad])
    if device.tflops is not None and not profile.flops:
        raise ConfigError(
            f"cluster.device.tflops={device.tflops}: no operation of the model is known; set "
            "cluster.device.samples_per_second instead"
        )
    return profile


def ghost_data(name: str, train: int, validation: int, test: int) -> Data:
    """A data set that has only sizes: samples [1, 1, 1] and labels are all the same 0."""

    def split(size: int) -> Split:
        images, labels = torch.zeros(1, 1, 1, 1), torch.zeros(1, dtype=torch.int64)
        return Split(images=images.expand(size, 1, 1, 1), labels=labels.expand(size), mean=(0.0,), std=(1.0,))

    parts = split(train), split(validation), split(test)
    return Data(name=name, classes=2, shape=(1, 1, 1), train=parts[0], validation=parts[1], test=parts[2])


@dataclass(frozen=True)
class StandInModel(Model):
    """A vector that stands for a model."""

    numel: int
    name: str = "stand_in"

    def build(self, spec: InputSpec) -> nn.Module:
        """A module that has nothing but the vector, whatever the samples."""
        module = nn.Module()
        module.register_parameter("vector", nn.Parameter(torch.zeros(self.numel)))
        return module


@dataclass(frozen=True)
class NoOptimizer(Optimizer):
    """An optimizer that changes nothing; the schedule changes its `lr`."""

    lr: float

    def build(self, parameters: Iterable[Tensor]) -> torch.optim.Optimizer:
        """An optimizer that leaves parameters alone."""
        optimizer = torch.optim.Optimizer(parameters, {"lr": self.lr})
        optimizer.step = lambda closure=None: None  # pyright: ignore[reportAttributeAccessIssue] (an overload)
        return optimizer


def without_numbers(config: RunConfig, profile: Profile) -> RunConfig:
    """The run with a stand-in for the model and an optimizer that does nothing."""
    numel, _ = scale_of(profile)
    return dataclasses.replace(config, model=StandInModel(numel), optimizer=NoOptimizer(config.optimizer.lr))


@lru_cache(maxsize=64)
def falling_loss(drawn: int) -> Tensor:
    """The loss [] of a device's step number `drawn`: ranks at the same step read the same tensor."""
    return torch.tensor(1 / (1 + drawn))


class TimedReplica(SimulatedReplica):
    """A replica whose gradients are 0."""

    def _begin(self, batch: Batch, weight: float) -> Begun:
        loss = falling_loss(self.device.drawn)
        for parameter, place in zip(self.parameters.tensors, self._in_vector, strict=True):
            parameter.grad = place
        return lambda: (loss, True)

    def _given(self, weight: float) -> Tensor:
        # The gradients are 0 and stay so.
        return self._weighted(weight)[-1:] if self.stop_requested else NO_STOP_FLAG

    def _weighted(self, weight: float) -> Tensor:
        self.comm.write_stop_flag(self._vector[-1], self.stop_requested)
        return self._vector

    def _take(self, total: Tensor) -> None:
        self.stop_requested = self.comm.stop_possible and total[-1].item() != 0

    def _averaging_changed(self) -> None:
        self._vector.zero_()
        super()._averaging_changed()


def scale_of(profile: Profile) -> tuple[int, float]:
    """The size of the stand-in, and the model's size as a multiple of it."""
    total, buckets = sum(profile.numels), len(profile.buckets(4, DEFAULT_BUCKET_MIB))
    numel = min(max(NUMBERS, OF_BUCKET * buckets), total)
    return numel, total / numel


def ghost_batches(rank: int) -> Callable[[tuple[int, ...]], Batch]:
    """Makes a rank's batches from all ranks' sizes: the right size, and no content."""

    last: list[Batch] = []  # in most steps the batch is equal to the one before

    def batch(samples_of_rank: tuple[int, ...]) -> Batch:
        if not last or last[0].samples_of_rank is not samples_of_rank:
            size = samples_of_rank[rank]
            last[:] = [Batch(torch.empty(size, 0), torch.empty(size, dtype=torch.int64), samples_of_rank)]
        return last[0]

    return batch
