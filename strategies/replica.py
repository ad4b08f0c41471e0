"""One rank's model, its trainable parameters as a flat vector, its buffers, gradients and optimizer.

`compute_gradients` is the only place where forward and backward happen; the worlds (`runner/`) implement it.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from .layout import Layout
from .topology import Group


@dataclass(frozen=True)
class Batch:
    """A rank's piece of a global batch: inputs [b, C, H, W], targets [b], the sizes of all ranks' pieces."""

    inputs: Tensor
    targets: Tensor
    samples_of_rank: tuple[int, ...]


class Replica(ABC):
    """The state of one rank that training moves.

    Args:
        model: maps inputs [b, …] to outputs; already on its device.
        criterion: maps (outputs, targets) to the mean loss over the batch.
    """

    optimizer: torch.optim.Optimizer

    def __init__(self, model: nn.Module, criterion: nn.Module) -> None:
        self.model = model
        self.criterion = criterion
        self.parameters = Layout((n, p) for n, p in model.named_parameters() if p.requires_grad)
        # Integer buffers (BatchNorm's batch counter) are equal on all ranks by construction and are left
        # alone.
        self.buffers = Layout((n, b) for n, b in model.named_buffers() if b.is_floating_point())
        self.wish = False
        self.wished = False

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

    def gradients(self, out: Tensor | None = None) -> Tensor:
        """The gradients as a vector [m]; a parameter without a gradient counts as zero."""
        return self.parameters.pack(out, self._gradients())

    def load_gradients(self, flat: Tensor) -> None:
        """Set the gradients that the optimizer applies from `flat[:m]`."""
        self.parameters.unpack(flat, self._gradients())

    def clip(self, max_norm: float) -> None:
        """Scale the gradients to be applied to a norm of at most `max_norm`."""
        nn.utils.clip_grad_norm_(self.parameters.tensors, max_norm)

    def optimizer_state(self) -> Layout:
        """The optimizer's state with one element per parameter element (momenta), in parameter order."""
        named = []
        for slot, parameter in zip(self.parameters.slots, self.parameters.tensors, strict=True):
            for key, value in self.optimizer.state.get(parameter, {}).items():
                if isinstance(value, Tensor) and value.shape == parameter.shape and value.is_floating_point():
                    named.append((f"{slot.name}.{key}", value))
        return Layout(named)

    @abstractmethod
    def average_gradients_over(self, group: Group | None) -> None:
        """From now on `compute_gradients` leaves Σ n_r·g_r / Σ n_r over the group (None: own ones)."""

    @abstractmethod
    def compute_gradients(self, batch: Batch) -> Tensor:
        """Forward and backward; returns this rank's mean loss (a detached scalar, not averaged over ranks).

        Carries `wish` to the ranks that average gradients together and leaves in `wished` whether any of them
        had it, or had a loss that was not finite.
        """

    @abstractmethod
    def rng_state(self) -> dict[str, Tensor]:
        """The state of the random generators that forward and backward draw from."""

    @abstractmethod
    def load_rng_state(self, state: dict[str, Tensor]) -> None:
        """Restore `rng_state`."""

    def _gradients(self) -> list[Tensor]:
        for parameter in self.parameters.tensors:
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
        return [p.grad for p in self.parameters.tensors if p.grad is not None]
