"""Small models for laptops: a multi-layer perceptron and a convolutional network of some 10,000 parameters.

All weights are drawn from torch's global generator, which the caller seeds.
"""

from dataclasses import dataclass, field
from itertools import pairwise

from torch import nn

from .spec import InputSpec, Model

NORMS = ("none", "batch")
GRID = 3  # cells per side of the small CNN's average pooling


@dataclass(frozen=True, kw_only=True)
class MLP(Model):
    """Fully connected layers with ReLU between them, on the flattened image.

    hidden: width of each hidden layer; empty gives a linear classifier.
    Raises ValueError if a width is below 1.
    """

    hidden: list[int] = field(default_factory=lambda: [64])

    def __post_init__(self) -> None:
        _check_widths("model.hidden", self.hidden)

    @property
    def name(self) -> str:
        return "mlp"

    def build(self, spec: InputSpec) -> nn.Module:
        """Module from images [b, C, H, W] to logits [b, classes]."""
        widths = [spec.channels * spec.height * spec.width, *self.hidden]
        layers: list[nn.Module] = [nn.Flatten()]
        for width_in, width_out in pairwise(widths):
            layers += [nn.Linear(width_in, width_out), nn.ReLU()]
        return nn.Sequential(*layers, nn.Linear(widths[-1], spec.classes))


@dataclass(frozen=True, kw_only=True)
class SmallCNN(Model):
    """3×3 convolutions, all but the first of stride 2, then average pooling to a grid and a linear layer.

    channels: output channels of each convolution.
    norm: "none" (convolutions have a bias) or "batch" (batch normalisation after each convolution).
    The grid has 3 to 5 cells per side, fewer if the last feature map is smaller. Any image size works.
    7,178 parameters on 1×8×8, 8,778 on 1×28×28 and 11,162 on 3×32×32 images with 10 classes.
    Raises ValueError for a width below 1, no widths, an unknown norm.
    """

    channels: list[int] = field(default_factory=lambda: [8, 16, 32])
    norm: str = "none"

    def __post_init__(self) -> None:
        if not self.channels:
            raise ValueError("model.channels=[]: must name at least one width")
        _check_widths("model.channels", self.channels)
        if self.norm not in NORMS:
            raise ValueError(f"model.norm={self.norm}: must be one of {', '.join(NORMS)}")

    @property
    def name(self) -> str:
        return "small_cnn_bn" if self.norm == "batch" else "small_cnn"

    def build(self, spec: InputSpec) -> nn.Module:
        """Module from images [b, C, H, W] to logits [b, classes]."""
        batch_norm = self.norm == "batch"
        layers: list[nn.Module] = []
        for depth, (width_in, width_out) in enumerate(pairwise([spec.channels, *self.channels])):
            stride = 1 if depth == 0 else 2
            layers.append(nn.Conv2d(width_in, width_out, 3, stride=stride, padding=1, bias=not batch_norm))
            if batch_norm:
                layers.append(nn.BatchNorm2d(width_out))
            layers.append(nn.ReLU())
        # A fixed kernel, not adaptive pooling, because its gradient is deterministic on GPUs too.
        grid = [_coarse_grid(side, len(self.channels)) for side in (spec.height, spec.width)]
        (kernel_height, rows), (kernel_width, columns) = grid
        features = self.channels[-1] * rows * columns
        pool = nn.AvgPool2d((kernel_height, kernel_width))
        return nn.Sequential(*layers, pool, nn.Flatten(), nn.Linear(features, spec.classes))


def _coarse_grid(side: int, depth: int) -> tuple[int, int]:
    """(kernel, cells) of the pooling along a side, which all but one of `depth` convolutions halve."""
    for _ in range(depth - 1):
        side = (side + 1) // 2
    kernel = max(1, side // GRID)
    return kernel, side // kernel


def _check_widths(key: str, widths: list[int]) -> None:
    for position, width in enumerate(widths):
        if width < 1:
            raise ValueError(f"{key}[{position}]={width}: must be >= 1")
