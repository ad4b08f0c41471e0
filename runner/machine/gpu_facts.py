"""Facts about a rank's GPU for the records: memory, driver and library versions, variables."""

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
    """The facts of this rank's GPU; None on a CPU.

    `memory` in bytes; `capability`: compute capability; versions as each library writes them, None if there
    is none; `variables`: those set in this process that change how GPUs compute or communicate.
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
        "nccl": nccl_version(),
        "variables": variables(os.environ),
    }


def variables(environment: Mapping[str, str]) -> dict[str, str]:
    """Those of `environment` that change how GPUs compute or communicate, by name."""
    return {
        name: value
        for name, value in sorted(environment.items())
        if name in _NAMES or name.startswith(_BEGINNINGS)
    }


def driver(file: Path) -> str | None:
    """The version of the driver in `file`, written by its kernel module; None if there is none."""
    try:
        text = file.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    match = re.search(r"Kernel Module.*?\s(\d+(?:\.\d+)+)\s", text)
    return match[1] if match else None


def peak_memory(device: torch.device) -> tuple[int, int]:
    """Peak bytes of GPU memory that PyTorch allocated and reserved in this process; -1 on CPUs.

    Memory that NCCL and CUDA use themselves is not included.
    """
    if device.type != "cuda":
        return -1, -1
    return torch.cuda.max_memory_allocated(device), torch.cuda.max_memory_reserved(device)


def nccl_version() -> str | None:
    """The version of NCCL that torch has loaded; None in a build without NCCL."""
    # `nccl.version` raises in a build without NCCL.
    return ".".join(map(str, nccl.version())) if hasattr(torch._C, "_nccl_version") else None
