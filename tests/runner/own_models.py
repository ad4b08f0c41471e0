"""Models as a user brings them, of kinds that `models/` has none of; ranks and plug-ins import them."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from daso_bench.models.spec import InputSpec, Model


@dataclass(frozen=True, kw_only=True)
class Lazy(Model):
    """Layers that take their widths from the first batch; `eager`: the same with the widths given."""

    eager: bool = False
    name: str = "lazy"

    def build(self, spec: InputSpec) -> nn.Module:
        """Batch normalisation and dropout between two linear layers."""
        pixels, hidden = spec.channels * spec.height * spec.width, 12
        first = nn.Linear(pixels, hidden) if self.eager else nn.LazyLinear(hidden)
        norm = nn.BatchNorm1d(hidden) if self.eager else nn.LazyBatchNorm1d()
        last = nn.Linear(hidden, spec.classes) if self.eager else nn.LazyLinear(spec.classes)
        return nn.Sequential(nn.Flatten(), first, norm, nn.ReLU(), nn.Dropout(0.2), last)


@dataclass(frozen=True, kw_only=True)
class Sometimes(Model):
    """A branch that only batches above a mean go through: other ranks', other steps'. `never`: nobody's."""

    never: bool = False
    name: str = "sometimes"

    def build(self, spec: InputSpec) -> nn.Module:
        """Two branches before a linear layer."""
        return _Branches(spec, float("inf") if self.never else 0.75)


class _Branches(nn.Module):
    def __init__(self, spec: InputSpec, above: float) -> None:
        super().__init__()
        pixels = spec.channels * spec.height * spec.width
        self.always, self.sometimes = nn.Linear(pixels, 12), nn.Linear(pixels, 12)
        self.head, self.above = nn.Linear(12, spec.classes), above

    def forward(self, images: Tensor) -> Tensor:
        hidden = self.always(images.flatten(1))
        if float(images.sum(1).mean()) * 4 > self.above:
            hidden = hidden + self.sometimes(images.flatten(1))
        return self.head(torch.relu(hidden))


@dataclass(frozen=True, kw_only=True)
class TwoTypes(Model):
    """A head in float64 on a body in float32."""

    name: str = "two_types"

    def build(self, spec: InputSpec) -> nn.Module:
        """Two linear layers."""
        pixels = spec.channels * spec.height * spec.width
        return nn.Sequential(nn.Flatten(), nn.Linear(pixels, 12), nn.Linear(12, spec.classes).double())


@dataclass(frozen=True, kw_only=True)
class LazyInTraining(Model):
    """A lazy layer that an evaluation does not come to."""

    name: str = "lazy_in_training"

    def build(self, spec: InputSpec) -> nn.Module:
        """A linear layer, and another one behind it in training."""
        return _Auxiliary(spec)


class _Auxiliary(nn.Module):
    def __init__(self, spec: InputSpec) -> None:
        super().__init__()
        self.head = nn.LazyLinear(spec.classes)
        self.auxiliary = nn.LazyLinear(spec.classes)

    def forward(self, images: Tensor) -> Tensor:
        outputs = self.head(images.flatten(1))
        return self.auxiliary(outputs) if self.training else outputs
