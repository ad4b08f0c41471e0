"""One rank's model, its trainable parameters as a flat vector, its buffers, gradients and optimizer.

Forward and backward happen in `compute_gradients` only. `runner/` has one subclass for real processes and one
for virtual time.
"""

import copy
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import chain, pairwise
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from .communicator import Communicator
from .gradients import Batch, GradientAveraging
from .layout import Layout
from .topology import WORLD, Group

__all__ = ["Batch", "Replica", "StepTimes"]

KEPT = 1000  # steps whose times are kept until `take_times`


class StepTimes(NamedTuple):
    """Nanoseconds of one step by this rank's clock or device.

    `forward_ns`: of the forward pass. `compute_ns`: of forward and backward, without waiting for sums.
    `samples_of_rank`: the step's samples of each rank.
    """

    samples_of_rank: tuple[int, ...]
    forward_ns: int
    compute_ns: int


class Replica(ABC):
    """The state of one rank that training moves.

    model: on its device; criterion: maps (outputs, targets) to the mean loss over the batch.
    """

    optimizer: torch.optim.Optimizer

    def __init__(self, model: nn.Module, criterion: nn.Module) -> None:
        self.model = model
        self.criterion = criterion
        trainable = [(n, p) for n, p in model.named_parameters() if p.requires_grad]
        # The CPU for a model without tensors.
        device = next((t.device for t in chain(model.parameters(), model.buffers())), torch.device("cpu"))
        self.parameters = Layout(trainable, device)
        # Integer buffers (BatchNorm's batch counter) are equal on all ranks by construction: nobody averages
        # them.
        floating = [(n, b) for n, b in model.named_buffers() if b.is_floating_point()]
        self.buffers = Layout(floating, self.parameters.device)
        self.accumulate = 1  # parts of a batch that go forward and backward one after the other
        self.autocast: torch.dtype | None = None  # 16 bits inside the model; parameters keep their type
        self.scaler: torch.amp.GradScaler | None = None  # of the loss, for fp16; equal on all ranks
        self.requests_stop = False
        self.stop_requested = False
        self.averaging = GradientAveraging()
        # What this rank's optimizer steps: all trainable parameters, unless `bind` says otherwise.
        self.stepped: list[Tensor] = self.parameters.tensors
        # Noise of the data's shape, for measuring: samples -> inputs, targets. Set by the train context.
        self.noise: Callable[[int], tuple[Tensor, Tensor]] | None = None
        # Of the last step whose times are known; on GPUs that is an earlier step than the last one.
        self.forward_ns = self.compute_ns = 0
        self.times: deque[StepTimes] = deque(maxlen=KEPT)
        self.delayed_flag = False  # `stop_requested` is of the step before; equal on all ranks
        self._bound_gradients: list[Tensor] | None = None
        self._bound_clip: Callable[[float], None] | None = None

    @property
    def numel(self) -> int:
        """m, the number of trainable elements."""
        return self.parameters.numel

    def flat(self, out: Tensor | None = None) -> Tensor:
        """The trainable parameters as a vector [m] (copied into `out[:m]` if given)."""
        return self.parameters.pack(out)

    def load(self, flat: Tensor) -> None:
        """Set the trainable parameters from `flat[:m]`."""
        self.parameters.unpack(flat)

    def here(self, tensor: Tensor | None) -> Tensor | None:
        """A tensor of a checkpoint, moved from the CPU to this replica's device."""
        return None if tensor is None else tensor.to(self.parameters.device)

    def gradients(self, out: Tensor | None = None) -> Tensor:
        """The gradients as a vector [m]; a parameter without a gradient counts as zero."""
        return self.parameters.pack(out, self._gradients())

    def load_gradients(self, flat: Tensor) -> None:
        """Set the gradients that the optimizer applies from `flat[:m]`."""
        self.parameters.unpack(flat, self._gradients())

    def take_times(self) -> list[StepTimes]:
        """Times of the steps that became known since the last call, oldest first."""
        taken = list(self.times)
        self.times.clear()
        return taken

    def wait_pending(self) -> None:  # noqa: B027 (CPUs have nothing to wait for)
        """Wait for all work on this rank's device; afterwards the times of all steps are known."""

    def take_device_ns(self) -> tuple[int, int] | None:
        """Nanoseconds that the device computed, and waited for sums, since the last call.

        None: the host's clock is the device's. Call it after `wait_pending`.
        """
        return None

    def step(self) -> None:
        """Let the optimizer apply the gradients; a scaler skips a step that is not finite.

        A parameter without a gradient in this step has a gradient of zero, averaged over ranks or not.
        """
        self._gradients()
        if self.scaler is None:
            self.optimizer.step()
            return
        self.scaler.step(self.optimizer)
        self.scaler.update()

    def clip(self, max_norm: float) -> None:
        """Scale the gradients to be applied to a norm of at most `max_norm`."""
        if self._bound_clip is not None:
            self._bound_clip(max_norm)
        else:
            nn.utils.clip_grad_norm_(self.parameters.tensors, max_norm)

    def optimizer_state(self) -> Layout:
        """The optimizer's state with one element per parameter element (momenta), in parameter order."""
        named = []
        for slot, parameter in zip(self.parameters.slots, self.parameters.tensors, strict=True):
            for key, value in self.optimizer.state.get(parameter, {}).items():
                # Adam's count of steps is a tensor too, and of a scalar parameter's shape.
                fits = isinstance(value, Tensor) and value.shape == parameter.shape and key != "step"
                if fits and value.is_floating_point():
                    named.append((f"{slot.name}.{key}", value))
        return Layout(named, self.parameters.device)

    def average_gradients_over(self, group: Group | None, **how: Any) -> None:
        """From now on `compute_gradients` leaves Σ w_r·g_r over the group (None: this rank's own gradients).

        `how` are further fields of `GradientAveraging`; without any, w_r = n_r / Σ n_r. May be called again.
        """
        self.averaging = GradientAveraging(group=group, **how)
        self._averaging_changed()

    def bind(
        self,
        gradients: Sequence[Tensor],
        *,
        parameters: Sequence[Tensor] | None = None,
        stepped: Sequence[int] | None = None,
        clip: Callable[[float], None] | None = None,
    ) -> None:
        """Put gradients, and parameters if given, into the strategy's own memory, before an optimizer exists.

        Args:
            gradients: one tensor per trainable parameter, of its shape, type and strides: where backward
                writes. They are zeroed at the start of each `compute_gradients`, never replaced.
            parameters: one tensor per trainable parameter, holding its values already; the model's parameters
                become views of them.
            stepped: places of the parameters that this rank's optimizer steps; None: all of them.
            clip: replaces `clip`, if no rank sees all applied gradients.
        """
        # PyTorch's fused optimizers read a gradient of other strides in the wrong order, without an error.
        for parameter, memory in zip(self.parameters.tensors, gradients, strict=True):
            usual = torch.empty_like(parameter, device="meta").stride()
            assert memory.stride() == usual, "gradients lie in memory as backward would lay them"
        if parameters is not None:
            for parameter, memory in zip(self.parameters.tensors, parameters, strict=True):
                parameter.data = memory
            self.parameters.home_now()  # lets go of the memory that they had
        self._bound_gradients, self._bound_clip = list(gradients), clip
        if stepped is not None:
            self.stepped = [self.parameters.tensors[place] for place in stepped]

    def apply(self, gradients: Mapping[int, Tensor]) -> None:
        """Let the optimizer apply `gradients` (by the parameter's place, of its strides) in this step."""
        for place, gradient in gradients.items():
            self.parameters.tensors[place].grad = gradient

    @contextmanager
    def stand_in(self, batch: Batch) -> Iterator[tuple[Tensor, Tensor]]:
        """Inputs and targets of the forward pass: the batch's own, or one blank sample if it has none.

        A rank without samples runs the same graph with weight 0, without a trace in running statistics. The
        loss of a blank sample means nothing, even if it is not finite.
        """
        if len(batch.targets):
            yield batch.inputs, batch.targets
            return
        training = [module for module in self.model.modules() if module.training]
        self.model.eval()
        inputs, targets = (of.new_zeros(1, *of.shape[1:]) for of in (batch.inputs, batch.targets))
        yield inputs, targets
        for module in training:
            module.training = True

    def parts(self, samples: int) -> list[tuple[slice, float]]:
        """The parts of a batch of `samples` samples, and the share of the batch that each has.

        Σ share · gradient of the part's mean loss is the gradient of the batch's mean loss. Sizes of parts
        differ by at most one sample; a batch of fewer samples than `accumulate` has fewer parts.
        """
        number = min(self.accumulate, samples)
        if number < 2:
            return [(slice(0, samples), 1.0)]
        ends = [samples * part // number for part in range(number + 1)]
        return [(slice(low, high), (high - low) / samples) for low, high in pairwise(ends)]

    def model_vector(self) -> Tensor:
        """A copy of the model [m + F]: parameters, then floating-point buffers in the parameters' type."""
        return torch.cat([self.flat(), self.buffers.pack().to(self.parameters.dtype)])

    @contextmanager
    def averaged_buffers(self, comm: Communicator, weight: float | None = None) -> Iterator[None]:
        """Inside, floating-point buffers are their mean over all ranks; afterwards they are as before.

        `weight`: this rank's, of weights that sum to 1; None: equal weights.
        """
        saved = self.buffers.pack()
        if self.buffers.numel and comm.topology.ranks > 1:
            flat = self.buffers.pack()
            if weight is not None:
                flat = flat * weight
            comm.all_reduce(flat, WORLD).wait()
            self.buffers.unpack(flat / comm.topology.ranks if weight is None else flat)
        try:
            yield
        finally:
            self.buffers.unpack(saved)

    @contextmanager
    def kept(self) -> Iterator[None]:
        """Afterwards parameters and floating-point buffers are as before."""
        parameters, buffers = self.flat(), self.buffers.pack()
        try:
            yield
        finally:
            self.load(parameters)
            self.buffers.unpack(buffers)

    @contextmanager
    def untouched(self) -> Iterator[None]:
        """Afterwards the replica is as before, bit for bit, and has no gradients.

        That is parameters, buffers, optimizer state, random numbers and the state of the gradients' sum.
        """
        # The model's state dictionary would lack buffers that are not saved with the model.
        tensors = [*self.model.parameters(), *self.model.buffers()]
        saved = [tensor.detach().clone() for tensor in tensors]
        optimizer, rng = copy.deepcopy(self.optimizer.state_dict()["state"]), self.rng_state()
        reduction = self.averaging.reduction
        remembered = copy.deepcopy(reduction.state_dict()) if reduction is not None else {}
        scale = self.scaler.state_dict() if self.scaler is not None else {}
        times, self.times = self.times, deque(maxlen=KEPT)
        yield
        self.times = times
        with torch.no_grad():
            for tensor, before in zip(tensors, saved, strict=True):
                tensor.copy_(before)
        self.optimizer.state.clear()
        if optimizer:
            whole = self.optimizer.state_dict()
            self.optimizer.load_state_dict({**whole, "state": optimizer})
        if reduction is not None:
            reduction.load_state_dict(remembered)
        if self.scaler is not None:
            self.scaler.load_state_dict(scale)
        self.stop_requested = False
        for parameter in self.parameters.tensors:
            parameter.grad = None
        self.load_rng_state(rng)

    @abstractmethod
    def time_steps(self, samples: int, steps: int) -> list[float]:
        """Seconds of each of `steps` training steps on `samples` noise samples, without averaging anything.

        Forward, backward and optimizer step. Parameters, buffers, optimizer state and random numbers are as
        before afterwards, bit for bit. Needs `noise` and an optimizer.
        """

    @abstractmethod
    def _averaging_changed(self) -> None:
        """Prepare for the new `averaging`."""

    @abstractmethod
    def compute_gradients(self, batch: Batch) -> Tensor:
        """Forward and backward; returns this rank's mean loss (a detached scalar, not averaged over ranks).

        `requests_stop` travels with the gradients. Afterwards `stop_requested` is true if a rank of the
        gradient group requested a stop or had a loss that is not finite in this step; with `delayed_flag`,
        in the step before.
        """

    @abstractmethod
    def rng_state(self) -> dict[str, Tensor]:
        """The state of the random generators that forward and backward draw from."""

    @abstractmethod
    def load_rng_state(self, state: dict[str, Tensor]) -> None:
        """Restore `rng_state`."""

    def _unscale(self) -> None:
        """Divide the gradients by the scale of the loss, if there is one."""
        if self.scaler is not None:
            self.scaler.unscale_(self.optimizer)

    def _clear_gradients(self) -> None:
        """Before a forward pass: no gradients, or zeros in bound memory."""
        if self._bound_gradients is None:
            for parameter in self.parameters.tensors:
                parameter.grad = None
            return
        for parameter, memory in zip(self.parameters.tensors, self._bound_gradients, strict=True):
            parameter.grad = memory
        torch._foreach_zero_(self._bound_gradients)  # pyright: ignore[reportPrivateImportUsage] (no public name)

    def _gradients(self) -> list[Tensor]:
        for parameter in self.parameters.tensors:
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
        return [p.grad for p in self.parameters.tensors if p.grad is not None]
