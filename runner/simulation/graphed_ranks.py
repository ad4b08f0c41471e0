"""Ranks by a CUDA graph: one captured step on memory of its own, into which each rank's numbers are copied.

Launching a model's kernels one by one takes the host longer than a GPU needs for a rank's small batch. A
captured step is launched at once; parameters and buffers are copied in, gradients, buffers and loss out.
"""

import copy
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from ..training.precision import outputs_of
from ..training.workload import generator_states, set_generators
from .rank_compute import Pending, RankCompute, Shapes, copy_all

WARM_UP = 3  # passes before the capture: libraries choose their kernels in the first ones

Outputs = tuple[Tensor, list[Tensor]]
Capture = Callable[[Callable[[], Outputs]], Callable[[], Outputs]]


def cuda_graph(run: Callable[[], Outputs]) -> Callable[[], Outputs]:
    """`run` as CUDA captured it: each call does its work again on the same memory."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(WARM_UP):
            run()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        outputs = run()

    def replay() -> Outputs:
        graph.replay()
        return outputs

    return replay


class Scratch:
    """A copy of a step's model and batch, on which steps of its shape are computed.

    `replay` computes what was loaded; at first that is `run`.
    """

    def __init__(self, step: Pending) -> None:
        self._criterion, self._autocast = step.criterion, step.autocast
        self.model = copy.deepcopy(step.model)
        parameters, self.buffers = list(self.model.parameters()), list(self.model.buffers())
        self._trained = [parameter for parameter in parameters if parameter.requires_grad]
        self._batch = [
            torch.empty_like(step.inputs),
            torch.empty_like(step.targets),
            step.inputs.new_ones(()),
        ]
        self._into = [*parameters, *self.buffers, *self._batch]
        self.replay: Callable[[], Outputs] = self.run

    def load(self, step: Pending, weight: Tensor) -> None:
        """Copy a step's parameters, buffers and batch in, and the `weight` [] of its loss."""
        parameters, buffers = step.parameters.values(), step.buffers.values()
        copy_all(self._into, [*parameters, *buffers, step.inputs, step.targets, weight])

    def run(self) -> Outputs:
        """The loss [] and the gradients of the trained parameters, zeros of an unused one."""
        for parameter in self._trained:
            parameter.grad = None
        inputs, targets, weight = self._batch
        # Autocast's cache would keep 16-bit copies of parameters that are other numbers by now.
        outputs = outputs_of(self.model, inputs, self._autocast, cache=False)
        loss = self._criterion(outputs, targets)
        (loss * weight).backward()
        return loss.detach(), [torch.zeros_like(p) if p.grad is None else p.grad for p in self._trained]


class GraphedRanks(RankCompute):
    """Each rank's step by one captured step. `capture`: makes it, on devices of the type `device`."""

    name = "graph"

    def __init__(
        self, tick: Callable[[], None] = lambda: None, capture: Capture = cuda_graph, device: str = "cuda"
    ) -> None:
        super().__init__(tick)
        self._capture, self._device = capture, device
        self._scratch: dict[Shapes, Scratch] = {}

    def refusal(self, step: Pending) -> str | None:
        device = step.inputs.device
        if device.type != self._device:
            return f"steps are captured on {self._device} alone, and the ranks compute on {device.type}"
        states = generator_states(device)
        try:
            scratch = Scratch(step)
            scratch.load(step, step.inputs.new_ones(()))
            scratch.run()
            if any(not torch.equal(states[name], now) for name, now in generator_states(device).items()):
                set_generators(states, device)
                return "the model draws random numbers, which are each rank's own"
            if any(a is not b for a, b in zip(scratch.buffers, scratch.model.buffers(), strict=True)):
                return "the model replaces its buffers instead of changing them"
            scratch.replay = self._capture(scratch.run)
        except RuntimeError as error:  # above all a choice by value, for which the host would have to wait
            return f"the step cannot be captured ({str(error).splitlines()[0]})"
        self._scratch[step.shapes] = scratch
        return None

    def compute(self, steps: Sequence[Pending]) -> Tensor:
        scratch, inputs, losses = self._scratch[steps[0].shapes], steps[0].inputs, []
        weights = torch.tensor([step.weight for step in steps], dtype=inputs.dtype, device=inputs.device)
        for step, weight in zip(steps, weights.unbind(), strict=True):
            scratch.load(step, weight)
            loss, gradients = scratch.replay()
            copy_all([*step.gradient_places(), *step.buffers.values()], [*gradients, *scratch.buffers])
            losses.append(loss.clone())
            self.tick()
        return torch.stack(losses)
