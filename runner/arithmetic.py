"""What decides how this process computes, besides the numbers: precisions of products, choice of kernels."""

from typing import Any

import torch

from .environment import processor


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
