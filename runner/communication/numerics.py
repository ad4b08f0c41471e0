"""What decides how this process computes, besides the numbers: precisions of products, choice of kernels."""

from typing import Any

import torch

from ...strategies.errors import ConfigError
from ..machine.environment import processor


def choose(precision: str, device: torch.device) -> None:
    """Let float32 products on a GPU be what `train.precision` says: TF32 with tf32, else float32's own.

    PyTorch's convolutions take TF32 unless they are told not to, its matrix products do not. CPUs have none.
    For the whole process. Raises ConfigError for tf32 on a CPU.
    """
    if device.type != "cuda":
        if precision == "tf32":
            raise ConfigError(
                "train.precision=tf32: products of TF32 are a GPU's, and this rank computes on a CPU; "
                "take fp32"
            )
        return
    word = "tf32" if precision == "tf32" else "ieee"
    cudnn: Any = torch.backends.cudnn
    # PyTorch has two sets of words. Where they differ, who reads the older (its compiler does) gets an error.
    torch.backends.cuda.matmul.allow_tf32 = cudnn.allow_tf32 = precision == "tf32"
    cudnn.conv.fp32_precision = cudnn.rnn.fp32_precision = word
    torch.backends.cuda.matmul.fp32_precision = word


def flags() -> dict[str, Any]:
    """Torch's own words for the precision of float32 products by library, and how kernels are chosen."""
    # Attributes that torch makes at import, unknown to type checkers; torch 2.9, our oldest, has them.
    conv: Any = torch.backends.cudnn.conv  # pyright: ignore[reportAttributeAccessIssue] (see above)
    mkldnn: Any = torch.backends.mkldnn.matmul  # pyright: ignore[reportAttributeAccessIssue] (see above)
    return {
        "fp32_cuda_matmul": torch.backends.cuda.matmul.fp32_precision,
        "fp32_cudnn_conv": conv.fp32_precision,
        "fp32_mkldnn_matmul": mkldnn.fp32_precision,
        "cudnn_benchmark": torch.backends.cudnn.benchmark,
        "deterministic": torch.are_deterministic_algorithms_enabled(),
    }


def device_model(device: torch.device) -> str | None:
    """The maker's name of `device`; None if the system does not tell."""
    return torch.cuda.get_device_name(device) if device.type == "cuda" else processor()
