"""Steps of waiting ranks: the interface of the ways to compute them, and the plain way, one by one."""

import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

log = logging.getLogger(__name__)

Part = tuple[slice, float]


@dataclass(eq=False)
class Pending:
    """One rank's step: `weight` · the loss of `model` on inputs [b, …] and targets [b].

    `parameters`, `buffers`: the model's, by name. `alone` computes it by itself and returns the loss.
    `parts`: of the batch, one after the other, with their shares of it. `scaled`: the loss has fp16's scale.
    `home`: the trained parameters as one vector [m], if they lie so in memory; `into`: where their gradients
    go, as a vector [m] and as its parts. `loss` [], `finite`: once it is computed.
    """

    model: nn.Module
    criterion: nn.Module
    parameters: dict[str, nn.Parameter]
    buffers: dict[str, Tensor]
    inputs: Tensor
    targets: Tensor
    weight: float
    alone: Callable[[], Tensor]
    parts: Sequence[Part] = ((slice(None), 1.0),)
    autocast: torch.dtype | None = None
    scaled: bool = False
    home: Tensor | None = None
    into: tuple[Tensor, Sequence[Tensor]] | None = None
    loss: Tensor | None = None
    finite: bool = True

    @property
    def shapes(self) -> tuple[torch.Size, torch.Size]:
        return self.inputs.shape, self.targets.shape

    def gradient_places(self) -> list[Tensor]:
        """Where the gradients of the trained parameters go, in their order; made if there are none."""
        trained = [parameter for parameter in self.parameters.values() if parameter.requires_grad]
        if self.into is not None:
            for parameter, place in zip(trained, self.into[1], strict=True):
                if parameter.grad is not place:
                    parameter.grad = place
        places = []
        for parameter in trained:
            # A gradient must lie in memory as its parameter does: fused optimizers do not look.
            if parameter.grad is None:
                parameter.grad = torch.empty_like(parameter)
            places.append(parameter.grad)
        return places


class RankCompute(ABC):
    """A way to compute steps. Steps given together have models of one kind and batches of one shape.

    `tick`: called where the work makes progress.
    """

    name: ClassVar[str]

    def __init__(self, tick: Callable[[], None] = lambda: None) -> None:
        self.tick = tick
        self._refusals: dict[tuple[torch.Size, torch.Size], str | None] = {}

    def refusal(self, step: Pending) -> str | None:
        """Why batches of this shape cannot be computed in this way, None if they can; tried once."""
        if step.shapes not in self._refusals:
            self._refusals[step.shapes] = why = self._try(step)
            if why is not None:
                log.info(
                    "rank_compute=%s: not for batches of %s: %s", self.name, list(step.inputs.shape), why
                )
        return self._refusals[step.shapes]

    def at_once(self, step: Pending) -> int:
        """How many such steps the device computes at once."""
        return 1

    @abstractmethod
    def _try(self, step: Pending) -> str | None:
        """Get ready for batches of this shape; returns why it cannot be. The step is computed later."""

    @abstractmethod
    def compute(self, steps: Sequence[Pending]) -> Tensor:
        """The losses [n], detached; gradients and buffers are in the models afterwards."""


class OneByOne(RankCompute):
    """Each rank's step by itself."""

    name = "one_by_one"

    def _try(self, step: Pending) -> str | None:
        return None

    def compute(self, steps: Sequence[Pending]) -> Tensor:
        losses = []
        for step in steps:
            losses.append(step.alone())
            self.tick()
        return torch.stack(losses)


def backward_in_parts(
    outputs_of: Callable[[Tensor], Tensor],
    criterion: nn.Module,
    inputs: Tensor,
    targets: Tensor,
    parts: Sequence[Part],
    weighted: Callable[[Tensor, float], Tensor],
) -> Tensor:
    """Forward and backward of a batch, part by part; returns its mean loss [], detached.

    `weighted`: what backward starts from, given a part's mean loss and its share of the batch.
    """
    losses: list[Tensor] = []
    for part, share in parts:
        loss = criterion(outputs_of(inputs[part]), targets[part])
        weighted(loss, share).backward()
        losses.append(loss.detach() if share == 1 else share * loss.detach())
    return losses[0] if len(losses) == 1 else torch.stack(losses).sum()


def copy_all(into: Sequence[Tensor], of: Sequence[Tensor]) -> None:
    """Copy many tensors, of each type with one call."""
    by_type: dict[torch.dtype, tuple[list[Tensor], list[Tensor]]] = {}
    for place, tensor in zip(into, of, strict=True):
        places, tensors = by_type.setdefault(tensor.dtype, ([], []))
        places.append(place)
        tensors.append(tensor)
    with torch.no_grad():
        for places, tensors in by_type.values():
            torch._foreach_copy_(places, tensors)  # pyright: ignore[reportPrivateImportUsage] (no public name)


@contextmanager
def buffers_kept(steps: Sequence[Pending]) -> Iterator[None]:
    """Afterwards the buffers of the steps' models are as before."""
    buffers = [buffer for step in steps for buffer in step.buffers.values()]
    before = [buffer.clone() for buffer in buffers]
    try:
        yield
    finally:
        copy_all(buffers, before)
