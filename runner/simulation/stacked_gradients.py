"""Gradients of many ranks at once: what the ranks of one process compute in virtual time, in one go.

A rank's gradients are needed when its clock has gone on to where the first of them is sent. Until then other
ranks come to their own steps; when the first result is asked for, all that wait are computed together, as one
stack (`torch.func.vmap`): small models cost far less so than one after the other.

Who is computed with whom must not show in a single bit, or a resumed run would not go on as it was. Kernels
choose their ways by the size of a stack, of small ones above all: stacks of fewer than `FEWEST` are filled,
and before batches of a shape are stacked, gradients from the smallest and the largest stack are compared, bit
for bit.
"""

import logging
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad_and_value, vmap

log = logging.getLogger(__name__)

FEWEST = 8  # ranks of a stack
MOST_NUMBERS = 2**27  # parameters stacked at a time: half a GiB of them, and as much of gradients


@dataclass(eq=False)
class Pending:
    """One rank's step: `weight` · the loss of `model` on inputs [b, …] and targets [b].

    `parameters`: the model's, by name. `alone` computes it as ever and returns the loss. `home`: the memory
    [m] of those that are trained, one after the other, if they lie so; `into`: where their gradients are to
    lie, as a vector [m] and as its parts.
    """

    model: nn.Module
    parameters: dict[str, nn.Parameter]
    inputs: Tensor
    targets: Tensor
    weight: float
    alone: Callable[[], Tensor]
    home: Tensor | None = None
    into: tuple[Tensor, Sequence[Tensor]] | None = None
    loss: Tensor | None = None


class GradientPool:
    """Computes what waits, together where it can be stacked.

    Args:
        ranks: that will submit, at least `FEWEST`.
    """

    def __init__(self, criterion: nn.Module, ranks: int, tick: Callable[[], None] = lambda: None) -> None:
        assert ranks >= FEWEST, "fewer are computed one by one"
        self._criterion, self._ranks, self._tick = criterion, ranks, tick
        self._waiting: list[Pending] = []
        self._stackable: dict[Any, bool] = {}  # by the shapes of a batch
        self._names: tuple[str, ...] = ()
        self._shapes: dict[str, torch.Size] = {}
        self._together: Any = None

    def submit(self, pending: Pending) -> Pending:
        """Compute it some time before `result` returns. Its model must not change until then."""
        self._waiting.append(pending)
        return pending

    def result(self, pending: Pending) -> Tensor:
        """The loss [], detached; the gradients are in the model's parameters."""
        if pending.loss is None:
            waiting, self._waiting = self._waiting, []
            for some in _alike(waiting):
                if self._can_be_stacked(some[0]):
                    gradients, losses = self._stack(some)
                    self._hand_out(some, gradients, losses)
                    self._tick()
                    continue
                for one in some:
                    one.loss = one.alone()
                    self._tick()
        assert pending.loss is not None
        return pending.loss

    def _stack(self, some: Sequence[Pending], fewest: int = FEWEST) -> tuple[dict[str, Tensor], Tensor]:
        """Gradients by name [n, …] and losses [n] of `some`, filled up with the last to `fewest`."""
        full = [*some, *[some[-1]] * (fewest - len(some))]

        def stacked(name: str) -> Tensor:
            return torch.stack([one.parameters[name].detach() for one in full])

        homes = [one.home for one in full if one.home is not None]
        trained = self._split(torch.stack(homes)) if len(homes) == len(full) else map(stacked, self._names)
        fixed = sorted(some[0].parameters.keys() - set(self._names))
        inputs = torch.stack([one.inputs for one in full])
        targets = torch.stack([one.targets for one in full])
        weights = torch.tensor([one.weight for one in full], dtype=inputs.dtype)
        gradients, (_, losses) = self._together(
            dict(zip(self._names, trained, strict=True)),
            {name: stacked(name) for name in fixed},
            inputs,
            targets,
            weights,
        )
        return gradients, losses

    def _split(self, vectors: Tensor) -> list[Tensor]:
        """Parameters by name [n, …] of vectors [n, m]."""
        shapes = [self._shapes[name] for name in self._names]
        parts = vectors.split([math.prod(shape) for shape in shapes], 1)
        return [part.reshape(len(vectors), *shape) for part, shape in zip(parts, shapes, strict=True)]

    def _hand_out(self, some: Sequence[Pending], gradients: dict[str, Tensor], losses: Tensor) -> None:
        vectors = [one.into for one in some if one.into is not None]
        if len(vectors) == len(some):
            rows = torch.cat([gradients[name].flatten(1) for name in self._names], 1)
            into, of = [vector for vector, _ in vectors], list(rows.unbind(0)[: len(some)])
            for one, (_, places) in zip(some, vectors, strict=True):
                for name, place in zip(self._names, places, strict=True):
                    if one.parameters[name].grad is not place:
                        one.parameters[name].grad = place
        else:
            into, of = [], []
            for name in self._names:
                for one, gradient in zip(some, gradients[name].unbind(0), strict=False):
                    parameter = one.parameters[name]
                    # A gradient must lie in memory as its parameter does: fused optimizers do not look.
                    if parameter.grad is None:
                        parameter.grad = torch.empty_like(parameter)
                    into.append(parameter.grad)
                    of.append(gradient)
        torch._foreach_copy_(into, of)  # pyright: ignore[reportPrivateImportUsage] (no public name)
        for one, loss in zip(some, losses.unbind(0), strict=False):
            one.loss = loss

    def _can_be_stacked(self, one: Pending) -> bool:
        shapes = (one.inputs.shape, one.targets.shape)
        if shapes not in self._stackable:
            self._stackable[shapes] = self._try(one)
        return self._stackable[shapes]

    def _try(self, one: Pending) -> bool:
        """Whether its model can be stacked, and comes to the same bits in the smallest and largest stack."""
        numbers = sum(p.numel() for p in one.parameters.values())
        largest = min(max(2 * FEWEST, self._ranks), MOST_NUMBERS // max(1, numbers))
        if largest < 2 * FEWEST:
            return False
        trainable = {name: p for name, p in one.parameters.items() if p.requires_grad}
        self._names = tuple(trainable)
        self._shapes = {name: parameter.shape for name, parameter in trainable.items()}
        self._together = vmap(grad_and_value(self._loss_of(one.model), has_aux=True))
        if not stackable(one.model):
            return False
        try:
            small, large = self._stack([one])[0], self._stack([one], largest)[0]
        except (RuntimeError, ValueError) as error:
            # What a model does may be beyond vmap: random numbers, a choice by value.
            log.info("ranks are computed one after the other: %s", str(error).splitlines()[0])
            return False
        if not all(torch.equal(small[name][0], large[name][-1]) for name in self._names):
            return False
        one.alone()
        # Of a parameter that a model does not use there is no gradient, and zeros are something else.
        return all(p.grad is not None for p in trainable.values())

    def _loss_of(self, model: nn.Module) -> Any:
        criterion = self._criterion

        def loss(
            parameters: dict[str, Tensor], rest: dict[str, Tensor], x: Tensor, y: Tensor, weight: Tensor
        ) -> tuple[Tensor, Tensor]:
            value = criterion(functional_call(model, {**parameters, **rest}, (x,)), y)
            return value * weight, value

        return loss


def stackable(model: nn.Module) -> bool:
    """Whether a forward pass in training draws no random number and changes no buffer."""
    return not any(True for _ in model.buffers()) and not any(
        isinstance(module, nn.modules.dropout._DropoutNd) for module in model.modules()
    )


def _alike(waiting: Sequence[Pending]) -> list[list[Pending]]:
    """Groups of the same shapes, none too large to be stacked."""
    groups: dict[Any, list[Pending]] = {}
    for one in waiting:
        groups.setdefault((one.inputs.shape, one.targets.shape), []).append(one)
    numbers = sum(p.numel() for p in waiting[0].parameters.values())
    most = max(1, MOST_NUMBERS // max(1, numbers))
    return [some[at : at + most] for some in groups.values() for at in range(0, len(some), most)]
