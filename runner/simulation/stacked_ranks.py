"""Gradients of many simulated ranks in one call (`torch.func.vmap`), which is faster for small models.

The result must not depend, in any bit, on which ranks share a stack; else a resumed run would differ. Kernels
choose algorithms by the size of a stack, above all of a small one: a stack of fewer than `FEWEST` is padded,
and before batches of a shape are stacked, gradients and buffers of the smallest and of the largest stack are
compared bit for bit. (GPUs promise no bits: there they have to be close.)

Buffers (BatchNorm's running statistics) are stacked too: each rank's pass changes its own row, which is then
copied into its model.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from itertools import chain
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.func import functional_call, grad_and_value, vmap

from .rank_compute import Pending, RankCompute, Shapes, buffers_kept, copy_all

Named = Mapping[str, Tensor]

FEWEST = 8  # ranks of a stack
MOST_NUMBERS = 2**27  # parameters stacked at a time: half a GiB of them, and as much of gradients
MEMORY = 2**33  # bytes beside a CPU; an eighth of them, or of a GPU's, is for what a stack saves
NEAR = 1e-2  # deviation of GPUs' sums in another order, TF32 included; a wrong gradient is off by far more


class Stack(NamedTuple):
    """What n steps gave: gradients [n, m], losses [n], buffers by name [n, …]."""

    gradients: Tensor
    losses: Tensor
    buffers: Named


class StackedRanks(RankCompute):
    """Steps in stacks of at least `FEWEST`, padded if need be."""

    name = "stacked"

    def __init__(self, ranks: int, tick: Callable[[], None] = lambda: None) -> None:
        super().__init__(tick)
        self._ranks = ranks
        self._most: dict[Shapes, int] = {}
        self._names: tuple[str, ...] = ()
        self._shapes: list[torch.Size] = []
        self._together: Any = None

    def compute(self, steps: Sequence[Pending]) -> Tensor:
        losses, most = [], self._most[steps[0].shapes]
        for some in (steps[at : at + most] for at in range(0, len(steps), most)):
            stack = self._stack(some)
            self._hand_out(some, stack)
            losses.append(stack.losses[: len(some)])
            self.tick()
        return torch.cat(losses)

    def _stack(self, steps: Sequence[Pending], fewest: int = FEWEST) -> Stack:
        """`steps` computed at once, padded with the last one to `fewest`."""
        full = [*steps, *[steps[-1]] * (fewest - len(steps))]

        def stacked(tensors: str, name: str) -> Tensor:
            return torch.stack([getattr(step, tensors)[name].detach() for step in full])

        homes = [step.home for step in full if step.home is not None]
        of_models = partial(stacked, "parameters")
        trained = self._split(torch.stack(homes)) if len(homes) == len(full) else map(of_models, self._names)
        fixed = sorted(steps[0].parameters.keys() - set(self._names))
        buffers = {name: stacked("buffers", name) for name in steps[0].buffers}
        inputs = torch.stack([step.inputs for step in full])
        targets = torch.stack([step.targets for step in full])
        weights = torch.tensor([step.weight for step in full], dtype=inputs.dtype, device=inputs.device)
        parameters = dict(zip(self._names, trained, strict=True))
        rest = {name: of_models(name) for name in fixed} | buffers
        gradients, (_, losses) = self._together(parameters, rest, inputs, targets, weights)
        return Stack(torch.cat([gradients[name].flatten(1) for name in self._names], 1), losses, buffers)

    def _row(self, step: Pending, size: int, row: int) -> list[Tensor]:
        """Gradients and buffers of one row of a stack of `size` equal steps."""
        stack = self._stack([step], size)
        return [rows[row].clone() for rows in (stack.gradients, *stack.buffers.values())]

    def _split(self, vectors: Tensor) -> list[Tensor]:
        """Parameters by name [n, …] of vectors [n, m]."""
        parts = vectors.split([math.prod(shape) for shape in self._shapes], 1)
        return [part.reshape(len(vectors), *shape) for part, shape in zip(parts, self._shapes, strict=True)]

    def _hand_out(self, steps: Sequence[Pending], stack: Stack) -> None:
        rows, places = stack.gradients[: len(steps)], [step.gradient_places() for step in steps]
        into, of = [step.into[0] for step in steps if step.into is not None], list(rows.unbind(0))
        if len(into) < len(steps):
            into = [place for of_name in zip(*places, strict=True) for place in of_name]
            of = [row for of_name in self._split(rows) for row in of_name.unbind(0)]
        for name, buffers in stack.buffers.items():
            into += [step.buffers[name] for step in steps]
            of += list(buffers.unbind(0)[: len(steps)])
        copy_all(into, of)

    def refusal(self, step: Pending) -> str | None:
        if step.autocast is not None:
            return "autocast (train.precision) has no backward pass inside of torch.func.vmap"
        trainable = {name: p for name, p in step.parameters.items() if p.requires_grad}
        self._names, self._shapes = tuple(trainable), [p.shape for p in trainable.values()]
        self._together = vmap(grad_and_value(_loss_of(step.model, step.criterion), has_aux=True))
        try:
            self._stack([step], 1)
        except (RuntimeError, ValueError) as error:  # random numbers, a choice by value
            return f"torch.func.vmap cannot compute the model ({str(error).splitlines()[0]})"
        with buffers_kept([step]):
            saved = _saved_by(step.alone)
            buffers = {name: buffer.clone() for name, buffer in step.buffers.items()}
            if any(now is not step.buffers[name] for name, now in step.model.named_buffers()):
                return "the model replaces its buffers instead of changing them"
        if any(parameter.grad is None for parameter in trainable.values()):
            return "the model does not use all parameters; a stack would give the others zeros"
        on_gpu = step.inputs.is_cuda
        memory = torch.cuda.get_device_properties(step.inputs.device).total_memory if on_gpu else MEMORY
        most = min(most_stacked(step.parameters.values()), memory // 8 // max(1, saved))
        if most < 2 * FEWEST:
            return f"the model is large: a stack would hold {most} ranks, and has to hold {2 * FEWEST}"
        # Of all gradients together: a single one may be 0 but for rounding.
        small = self._row(step, FEWEST, 0)
        large = self._row(step, min(max(2 * FEWEST, self._ranks), most), -1)
        if not all(map(_near if on_gpu else torch.equal, small, large)):
            return "gradients depend, in their bits, on the size of the stack"
        if not all(map(_near, buffers.values(), small[1:])):
            return "buffers become others in a stack"
        self._most[step.shapes] = most
        return None


def most_stacked(parameters: Iterable[Tensor]) -> int:
    """Ranks with these parameters that may share a stack, as far as its size decides."""
    return MOST_NUMBERS // max(1, sum(parameter.numel() for parameter in parameters))


def _saved_by(alone: Callable[[], Tensor]) -> int:
    """Bytes that the forward pass of a step keeps for its backward pass, at most."""
    saved = 0

    def keep(tensor: Tensor) -> Tensor:
        nonlocal saved
        saved += tensor.numel() * tensor.element_size()
        return tensor

    with saved_tensors_hooks(keep, lambda tensor: tensor):
        alone()
    return saved


def _near(mine: Tensor, other: Tensor) -> bool:
    mine, other = mine.double(), other.double()
    distance, length = (torch.linalg.vector_norm(tensor) for tensor in (mine - other, other))
    return torch.equal(mine, other) or bool(distance <= NEAR * length)  # equal: also where both are infinite


def _loss_of(model: nn.Module, criterion: nn.Module) -> Any:
    # Each module once, with all its names of a tensor: `tie_weights` of PyTorch 2.14 would leave the stack's
    # tensors in a module that the model holds under two names.
    name_of = {tensor: name for name, tensor in chain(model.named_parameters(), model.named_buffers())}
    places = {
        f"{path}.{name}".lstrip("."): name_of[tensor]
        for path, module in model.named_modules()
        for name, tensor in chain(module._parameters.items(), module._buffers.items())
        if tensor is not None
    }

    def loss(parameters: Named, rest: Named, x: Tensor, y: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
        named = {**parameters, **rest}
        state = {place: named[name] for place, name in places.items()}
        value = criterion(functional_call(model, state, (x,), tie_weights=False), y)
        return value * weight, value

    return loss
