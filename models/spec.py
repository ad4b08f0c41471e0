"""The base class of models, with the manual of how to add one; the input's shape; a model without layers."""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

from torch import nn


@dataclass(frozen=True)
class InputSpec:
    """Shape of one sample and the number of classes.

    A model built for it maps float images [b, channels, height, width] to logits [b, classes], one for
    segmentation to logits [b, classes, height, width].
    """

    channels: int
    height: int
    width: int
    classes: int


class Model(ABC):
    """The keys of a model: a frozen, keyword-only dataclass that checks them in `__post_init__`.

    A new one is a subclass with `build`, and conf/model/NAME.yaml with `_target_` and every key; outside of
    this repository the same with --config-dir. `name`: for people, a key, a property or a class variable;
    without one the file's name is shown. `task`: classification or segmentation. `suggested_epochs`: what
    `train.epochs=auto` takes.
    """

    task: ClassVar[str] = "classification"
    suggested_epochs: ClassVar[int] = 12

    @abstractmethod
    def build(self, spec: InputSpec) -> nn.Module:
        """The module for samples of `spec`, its weights drawn from torch's global generator."""


@dataclass(frozen=True, kw_only=True)
class Sized(Model):
    """A model of a given size without layers, for virtual time.

    parameters, tensors: so many numbers in so many tensors of one size; gflops: of a sample's forward pass.
    Raises ValueError for a number out of range.
    """

    parameters: int
    tensors: int = 100
    gflops: float = 1.0
    name: str = "sized"

    def __post_init__(self) -> None:
        if not 1 <= self.tensors <= self.parameters:
            raise ValueError(
                f"model.tensors={self.tensors}: must be between 1 and model.parameters={self.parameters}"
            )
        if not self.gflops > 0:
            raise ValueError(f"model.gflops={self.gflops}: must be > 0")

    def numels(self) -> list[int]:
        size, rest = divmod(self.parameters, self.tensors)
        return [size + (place < rest) for place in range(self.tensors)]

    def build(self, spec: InputSpec) -> nn.Module:
        """Raises ValueError: there is nothing to train."""
        raise ValueError(f"model={self.name}: has no layers; it is for launcher.timing_only=true")
