"""Precision of training (`train.precision`): parameter types, autocast, and loss scaling for fp16.

    word   parameters, gradients, optimizer, averaging   inside the model
    fp64   float64                                       float64
    fp32   float32                                       float32
    tf32   float32                                       products of TF32, on GPUs
    bf16   float32                                       bfloat16 where `torch.autocast` takes it
    fp16   float32                                       float16 where `torch.autocast` takes it

Strategies see only the middle column. Outputs are converted to the parameters' type before the criterion, so
that the loss has the same arithmetic on all devices: autocast on CPUs would compute a logarithm in 16 bits.
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
"""The type of parameters and inputs."""

AUTOCAST = {"bf16": torch.bfloat16, "fp16": torch.float16}
"""The autocast type inside the model, where there is one."""


def outputs_of(
    model: nn.Module, inputs: Tensor, autocast: torch.dtype | None, *, cache: bool = True
) -> Tensor:
    """The model's outputs for inputs [b, …]; with `autocast` computed in it and returned in float32.

    `cache`: keep 16-bit copies of parameters during the pass.
    """
    if autocast is None:
        return model(inputs)
    with torch.autocast(inputs.device.type, dtype=autocast, cache_enabled=cache):
        outputs = model(inputs)
    return outputs.float() if outputs.dtype == autocast else outputs


def scaler_of(precision: str, device: torch.device) -> "LossScaler | None":
    """The scaler of a rank's loss for fp16, in which small gradients would be 0; None for other types."""
    return LossScaler(device=device.type) if precision == "fp16" else None


class LossScaler(torch.amp.GradScaler):
    """PyTorch's scaler (2^16 at first; half of it after a step left out, twice after 2000 that were not).

    It decides by the gradients that the optimizer applies. Where those are sums over all ranks, a number
    that is not finite on one rank is not finite on all: all skip the step and keep equal scales, without a
    message. `skipped` counts skipped steps, on the device. PyTorch halves the scale even below 1, where the
    model would never change again: `lost` detects this, and ends the run.
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
        return {**super().state_dict(), "skipped": int(self.skipped)}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.skipped.fill_(state_dict["skipped"])
        super().load_state_dict(state_dict)

    def lost(self) -> Tensor:
        """Whether the scale is below 1, bool [1] on the device: gradients overflow without any scaling."""
        assert self._scale is not None, "a loss has been scaled"
        return self._scale < 1

    def summary(self) -> dict[str, Any]:
        return {"scale": self.get_scale(), "skipped_steps": int(self.skipped)}


def is_lost(scaler: torch.amp.GradScaler | None) -> bool:
    """Whether the scale of the loss, if there is one, is below 1; waits for the GPU."""
    return scaler is not None and scaler.get_scale() < 1


def _begin_momenta(optimizer: torch.optim.Optimizer) -> None:
    """Make momenta of 0 where there is none yet: a first step from 0 equals one without momentum.

    PyTorch's fused SGD allocates momenta in its first step and, if that step is skipped, does not fill them:
    the second step would read uninitialised memory.
    """
    if not isinstance(optimizer, torch.optim.SGD):
        return
    for group in optimizer.param_groups:
        if group["momentum"] and group["dampening"] == 0:
            for parameter in group["params"]:
                state = optimizer.state[parameter]
                if parameter.grad is not None and state.get("momentum_buffer") is None:
                    state["momentum_buffer"] = torch.zeros_like(parameter)
