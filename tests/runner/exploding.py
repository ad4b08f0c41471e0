"""A model whose gradients are infinite for one sample of its data: what an overflow of fp16 looks like."""

import math
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from runs import Blobs
from torch import Tensor, nn

from daso_bench.datasets.data import Data, Split
from daso_bench.models.spec import InputSpec, Model

MARK = 100.0


@dataclass(frozen=True, kw_only=True)
class Marked(Blobs):
    """`Blobs` with one marked training sample: a step of each epoch has it, on one rank."""

    all_of_them: bool = False

    name: ClassVar[str] = "marked"

    def load(self) -> Data:
        data = super().load()
        assert isinstance(data.train, Split)
        data.train.images[slice(None) if self.all_of_them else 7, 0, 0, 0] = MARK
        return data


@dataclass(frozen=True, kw_only=True)
class Exploding(Model):
    """A linear model that explodes in the backward pass of a marked sample."""

    name: str = "exploding"

    def build(self, spec: InputSpec) -> nn.Module:
        return ExplodingModule(spec.classes)


class ExplodingModule(nn.Module):
    def __init__(self, classes: int) -> None:
        super().__init__()
        self.head = nn.Linear(16, classes)

    def forward(self, images: Tensor) -> Tensor:
        return _Explode.apply(self.head(images.flatten(1)), images.amax() >= MARK)


class _Explode(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, outputs: Tensor, marked: Tensor) -> Tensor:
        ctx.marked = bool(marked)
        return outputs.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        (gradient,) = gradients
        return (gradient * math.inf if ctx.marked else gradient), None
