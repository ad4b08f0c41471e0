"""The base class of models, with the manual of how to add one, and the shape of what a model takes in."""

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
