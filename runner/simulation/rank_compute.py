"""Steps of waiting ranks: the interface of the ways to compute them, and the plain way, one by one."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

Shapes = tuple[torch.Size, torch.Size]


@dataclass(eq=False)
class Pending:
    """One rank's step: `weight` · the loss of `model` on inputs [b, …] and targets [b].

    `parameters`, `buffers`: the model's, by name. `alone` computes it by itself and returns the loss;
    `why_alone`: why no other way may. `home`: the trained parameters as one vector [m], if they lie so in
    memory; `into`: where their gradients go, as a vector [m] and as its parts. `loss` [], `finite`: results.
    """

    model: nn.Module
    criterion: nn.Module
    parameters: dict[str, nn.Parameter]
    buffers: dict[str, Tensor]
    inputs: Tensor
    targets: Tensor
    weight: float
    alone: Callable[[], Tensor]
    why_alone: str | None = None
    autocast: torch.dtype | None = None
    home: Tensor | None = None
    into: tuple[Tensor, Sequence[Tensor]] | None = None
    loss: Tensor | None = None
    finite: bool = True

    @property
    def shapes(self) -> Shapes:
        return self.inputs.shape, self.targets.shape

    def gradient_places(self) -> list[Tensor]:
        """Where the gradients of the trained parameters go, in their order."""
        trained = [parameter for parameter in self.parameters.values() if parameter.requires_grad]
        for place, parameter in enumerate(trained):
            if self.into is not None:
                parameter.grad = self.into[1][place]
            elif parameter.grad is None:
                # It must lie in memory as its parameter does: fused optimizers do not look.
                parameter.grad = torch.empty_like(parameter)
        return [parameter.grad for parameter in trained if parameter.grad is not None]


class RankCompute(ABC):
    """A way to compute steps. `tick`: called where the work makes progress."""

    name: ClassVar[str]

    def __init__(self, tick: Callable[[], None] = lambda: None) -> None:
        self.tick = tick

    @abstractmethod
    def refusal(self, step: Pending) -> str | None:
        """Get ready for steps of this shape; why they cannot be computed so, if that is the case."""

    @abstractmethod
    def compute(self, steps: Sequence[Pending]) -> Tensor:
        """The losses [n] of steps of one shape; gradients and buffers are in the models afterwards."""


class OneByOne(RankCompute):
    """Each rank's step by itself."""

    name = "one_by_one"

    def refusal(self, step: Pending) -> str | None:
        return None

    def compute(self, steps: Sequence[Pending]) -> Tensor:
        losses = []
        for step in steps:
            losses.append(step.alone())
            self.tick()
        return torch.stack(losses)


def has_dropout(model: nn.Module) -> bool:
    """Whether a forward pass in training draws random numbers, which are each rank's own."""
    return any(isinstance(module, nn.modules.dropout._DropoutNd) for module in model.modules())


def copy_all(into: Sequence[Tensor], of: Sequence[Tensor]) -> None:
    """Copy many tensors, those of a type with one call."""
    for dtype in dict.fromkeys(tensor.dtype for tensor in into):
        pairs = [(place, tensor) for place, tensor in zip(into, of, strict=True) if place.dtype == dtype]
        places, tensors = map(list, zip(*pairs, strict=True))
        with torch.no_grad():
            torch._foreach_copy_(places, tensors)  # pyright: ignore[reportPrivateImportUsage] (no public name)


@contextmanager
def buffers_kept(steps: Sequence[Pending]) -> Iterator[None]:
    """Afterwards the buffers of the steps' models are as before, also where a pass replaces them."""
    buffers = [(module, dict(module._buffers)) for step in steps for module in step.model.modules()]
    tensors = [buffer for step in steps for buffer in step.buffers.values()]
    before = [tensor.clone() for tensor in tensors]
    try:
        yield
    finally:
        for module, of_module in buffers:
            module._buffers.update(of_module)
        copy_all(tensors, before)
