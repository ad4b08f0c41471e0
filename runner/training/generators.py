"""States of torch's random generators: the CPU's, and the GPU's of a rank that computes on one."""

from collections.abc import Mapping

import torch
from torch import Tensor


def generator_states(device: torch.device) -> dict[str, Tensor]:
    """States of the generators from which a pass on `device` may draw."""
    states = {"cpu": torch.get_rng_state()}
    if device.type == "cuda":
        states["cuda"] = torch.cuda.get_rng_state(device)
    return states


def set_generators(states: Mapping[str, Tensor], device: torch.device) -> None:
    """Restore `generator_states`; other entries are not read."""
    torch.set_rng_state(states["cpu"])
    if "cuda" in states:
        torch.cuda.set_rng_state(states["cuda"], device)
