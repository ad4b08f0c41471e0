"""What a GPU's numbers depend on besides its name, for the records: versions, memory, variables."""

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch.cuda import nccl

_NAMES = (
    "CUBLAS_WORKSPACE_CONFIG",
    "CUDA_DEVICE_MAX_CONNECTIONS",
    "CUDA_LAUNCH_BLOCKING",
    "CUDA_MODULE_LOADING",
    "NVIDIA_TF32_OVERRIDE",
    "PYTORCH_ALLOC_CONF",
    "PYTORCH_CUDA_ALLOC_CONF",
    "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE",
)
_BEGINNINGS = ("NCCL_", "TORCH_NCCL_")
_DRIVER = Path("/proc/driver/nvidia/version")


def of_rank(device: torch.device) -> dict[str, Any] | None:
    """This rank's GPU and what it is driven by; None on a CPU.

    `memory` in bytes; `capability` as the maker counts it; versions as each library writes its own, None
    where there is none; `variables`: those set in this process that change how GPUs compute or speak.
    """
    if device.type != "cuda":
        return None
    properties = torch.cuda.get_device_properties(device)
    return {
        "memory": properties.total_memory,
        "capability": f"{properties.major}.{properties.minor}",
        "driver": driver(_DRIVER),
        "cuda": torch.version.cuda,
        "cudnn": torch.backends.cudnn.version(),
        "nccl": _nccl(),
        "variables": variables(os.environ),
    }


def variables(environment: Mapping[str, str]) -> dict[str, str]:
    """Those of `environment` that change how GPUs compute or speak to each other, by name."""
    return {
        name: value
        for name, value in sorted(environment.items())
        if name in _NAMES or name.startswith(_BEGINNINGS)
    }


def driver(file: Path) -> str | None:
    """The driver's version as the kernel module tells it in `file`; None if it does not."""
    try:
        told = file.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    found = re.search(r"Kernel Module.*?\s(\d+(?:\.\d+)+)\s", told)
    return found[1] if found else None


def peak_memory(device: torch.device) -> tuple[int, int]:
    """The most bytes of a GPU that PyTorch had given out in this process, and had taken for that; -1 on CPUs.

    What NCCL and CUDA take for themselves is not in them.
    """
    if device.type != "cuda":
        return -1, -1
    return torch.cuda.max_memory_allocated(device), torch.cuda.max_memory_reserved(device)


def _nccl() -> str | None:
    # Not every build has it, and asking one that has not raises.
    return ".".join(map(str, nccl.version())) if hasattr(torch._C, "_nccl_version") else None
