"""Gradients of many simulated ranks in one call (`torch.func.vmap`), which is faster for small models.

A rank's gradients are needed when its clock reaches the time at which the first of them is sent. Until then
other ranks submit their own steps; when the first result is needed, all waiting steps are computed at once.

The result must not depend, in any bit, on which ranks share a stack; else a resumed run would differ. Kernels
choose algorithms by the size of a stack, above all of a small one: a stack of fewer than `FEWEST` is padded,
and before batches of a shape are stacked, gradients of the smallest and of the largest stack are compared bit
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

    `parameters`: the model's, by name. `alone` computes it by itself and returns the loss. `home`: the
    trained parameters as one vector [m], if they lie so in memory; `into`: where their gradients go, as a
    vector [m] and as its parts.
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
    """Computes the waiting steps of at least `FEWEST` ranks, in stacks where the model allows it."""

    def __init__(self, criterion: nn.Module, ranks: int, tick: Callable[[], None] = lambda: None) -> None:
        assert ranks >= FEWEST, "fewer are computed one by one"
        self._criterion, self._ranks, self._tick = criterion, ranks, tick
        self._waiting: list[Pending] = []
        self._stackable: dict[Any, bool] = {}  # by the shapes of a batch
        self._names: tuple[str, ...] = ()
        self._shapes: dict[str, torch.Size] = {}
        self._together: Any = None

    def submit(self, pending: Pending) -> Pending:
        """Queue a step, computed before its `result` returns. Its model must not change until then."""
        self._waiting.append(pending)
        return pending

    def result(self, pending: Pending) -> Tensor:
        """The loss [], detached; the gradients are in the model's parameters."""
        if pending.loss is None:
            waiting, self._waiting = self._waiting, []
            for stack in _alike(waiting):
                shapes = (stack[0].inputs.shape, stack[0].targets.shape)
                if shapes not in self._stackable:
                    self._stackable[shapes] = self._try(stack[0])
                if self._stackable[shapes]:
                    gradients, losses = self._stack(stack)
                    self._hand_out(stack, gradients, losses)
                    self._tick()
                    continue
                for step in stack:
                    step.loss = step.alone()
                    self._tick()
        assert pending.loss is not None
        return pending.loss

    def _stack(self, steps: Sequence[Pending], fewest: int = FEWEST) -> tuple[dict[str, Tensor], Tensor]:
        """Gradients by name [n, …] and losses [n] of `steps`, padded with the last one to `fewest`."""
        full = [*steps, *[steps[-1]] * (fewest - len(steps))]

        def stacked(name: str) -> Tensor:
            return torch.stack([step.parameters[name].detach() for step in full])

        homes = [step.home for step in full if step.home is not None]
        trained = self._split(torch.stack(homes)) if len(homes) == len(full) else map(stacked, self._names)
        fixed = sorted(steps[0].parameters.keys() - set(self._names))
        inputs = torch.stack([step.inputs for step in full])
        targets = torch.stack([step.targets for step in full])
        weights = torch.tensor([step.weight for step in full], dtype=inputs.dtype, device=inputs.device)
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

    def _hand_out(self, steps: Sequence[Pending], gradients: dict[str, Tensor], losses: Tensor) -> None:
        vectors = [step.into for step in steps if step.into is not None]
        if len(vectors) == len(steps):
            rows = torch.cat([gradients[name].flatten(1) for name in self._names], 1)
            into, of = [vector for vector, _ in vectors], list(rows.unbind(0)[: len(steps)])
            for step, (_, places) in zip(steps, vectors, strict=True):
                for name, place in zip(self._names, places, strict=True):
                    if step.parameters[name].grad is not place:
                        step.parameters[name].grad = place
        else:
            into, of = [], []
            for name in self._names:
                for step, gradient in zip(steps, gradients[name].unbind(0), strict=False):
                    parameter = step.parameters[name]
                    # A gradient must lie in memory as its parameter does: fused optimizers do not look.
                    if parameter.grad is None:
                        parameter.grad = torch.empty_like(parameter)
                    into.append(parameter.grad)
                    of.append(gradient)
        torch._foreach_copy_(into, of)  # pyright: ignore[reportPrivateImportUsage] (no public name)
        for step, loss in zip(steps, losses.unbind(0), strict=False):
            step.loss = loss

    def _try(self, step: Pending) -> bool:
        """Whether its model can be stacked, with equal bits in the smallest and in the largest stack."""
        numbers = sum(p.numel() for p in step.parameters.values())
        largest = min(max(2 * FEWEST, self._ranks), MOST_NUMBERS // max(1, numbers))
        if largest < 2 * FEWEST:
            return False
        trainable = {name: p for name, p in step.parameters.items() if p.requires_grad}
        self._names = tuple(trainable)
        self._shapes = {name: parameter.shape for name, parameter in trainable.items()}
        self._together = vmap(grad_and_value(self._loss_of(step.model), has_aux=True))
        if not stackable(step.model):
            return False
        try:
            small, large = self._stack([step])[0], self._stack([step], largest)[0]
        except (RuntimeError, ValueError) as error:
            # vmap refuses some models: random numbers, a choice by value.
            log.info("ranks are computed one after the other: %s", str(error).splitlines()[0])
            return False
        if not all(torch.equal(small[name][0], large[name][-1]) for name in self._names):
            return False
        step.alone()
        # A parameter that the model does not use has no gradient; a stack would give it zeros.
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
    for step in waiting:
        groups.setdefault((step.inputs.shape, step.targets.shape), []).append(step)
    numbers = sum(p.numel() for p in waiting[0].parameters.values())
    most = max(1, MOST_NUMBERS // max(1, numbers))
    return [steps[at : at + most] for steps in groups.values() for at in range(0, len(steps), most)]
