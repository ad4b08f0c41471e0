"""What `train.precision` comes to: types, 16 bits inside the model, and for fp16 a scale of the loss.

    word   parameters, gradients, optimizer, averaging   inside the model
    fp64   float64                                       float64
    fp32   float32                                       float32
    tf32   float32                                       products of TF32, on GPUs
    bf16   float32                                       bfloat16 where `torch.autocast` takes it
    fp16   float32                                       float16 where `torch.autocast` takes it

Strategies see the middle column alone. Outputs are made the parameters' type again before the criterion, so a
loss is the same arithmetic on all devices: autocast on CPUs would leave a logarithm in 16 bits.
"""

from typing import Any

import torch
from torch import Tensor, nn

DTYPES = {
    "fp32": torch.float32,
    "tf32": torch.float32,
    "bf16": torch.float32,
    "fp16": torch.float32,
    "fp64": torch.float64,
}
"""Of parameters and inputs."""

AUTOCAST = {"bf16": torch.bfloat16, "fp16": torch.float16}
"""Inside the model; of other words there is none."""


def outputs_of(model: nn.Module, inputs: Tensor, autocast: torch.dtype | None) -> Tensor:
    """The model's outputs for inputs [b, …], computed in `autocast` if there is one, in float32 then."""
    if autocast is None:
        return model(inputs)
    with torch.autocast(inputs.device.type, dtype=autocast):
        outputs = model(inputs)
    return outputs.float() if outputs.dtype == autocast else outputs


def scaler_of(precision: str, device: torch.device) -> "LossScaler | None":
    """The scaler of a rank's loss; None but for fp16, whose smallest number is too large for gradients."""
    return LossScaler(device=device.type) if precision == "fp16" else None


class LossScaler(torch.amp.GradScaler):
    """PyTorch's scaler (2^16 at first; half of it after a step left out, twice after 2000 that were not).

    It decides by the gradients that the optimizer is to apply. Where those are sums over all ranks, a number
    of one rank that is not finite is one on all: all leave the step out and go on with the same scale,
    without a message. `skipped` counts, on the device. PyTorch goes on halving below 1, where a model would
    never move again: `lost` says so, and ends the run.
    """

    def __init__(self, device: str, **more: Any) -> None:
        super().__init__(device, **more)
        self.skipped = torch.zeros((), device=device)

    def step(self, optimizer: torch.optim.Optimizer, *args: Any, **kwargs: Any) -> float | None:
        """Let `optimizer` step, unless a gradient is not finite."""
        for overflow in self._found_inf_per_device(optimizer).values():
            self.skipped += overflow
        _begin_momenta(optimizer)
        return super().step(optimizer, *args, **kwargs)

    def state_dict(self) -> dict[str, Any]:
        """PyTorch's, and the number of steps left out."""
        return {**super().state_dict(), "skipped": int(self.skipped)}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore `state_dict`."""
        self.skipped.fill_(state_dict["skipped"])
        super().load_state_dict(state_dict)

    def lost(self) -> Tensor:
        """Whether the scale is below 1 [1], on the device: gradients overflow that nothing made larger."""
        assert self._scale is not None, "asked once a loss was scaled"
        return self._scale < 1

    def summary(self) -> dict[str, Any]:
        """For the record: the present scale, and how many steps were left out."""
        return {"scale": self.get_scale(), "skipped_steps": int(self.skipped)}


def is_lost(scaler: torch.amp.GradScaler | None) -> bool:
    """Whether a rank's scale of the loss, if it has one, has fallen below 1; waits for a GPU."""
    return scaler is not None and scaler.get_scale() < 1


def _begin_momenta(optimizer: torch.optim.Optimizer) -> None:
    """Momenta of 0 where there is none yet: g follows from 0 as it does from nothing.

    PyTorch's fused SGD makes room for momenta in its first step and, if that step is left out, never fills
    it: the second would read whatever was in memory before.
    """
    if not isinstance(optimizer, torch.optim.SGD):
        return
    for group in optimizer.param_groups:
        if group["momentum"] and group["dampening"] == 0:
            for parameter in group["params"]:
                state = optimizer.state[parameter]
                if parameter.grad is not None and state.get("momentum_buffer") is None:
                    state["momentum_buffer"] = torch.zeros_like(parameter)
