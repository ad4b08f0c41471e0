"""Small models for laptops: a multi-layer perceptron, a convolutional network and a U-Net for segmentation.

All weights are drawn from torch's global generator, which the caller seeds.
"""

from dataclasses import dataclass, field
from itertools import pairwise
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn.functional import interpolate

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
        _check_channels(self.channels, self.norm)

    @property
    def name(self) -> str:
        return "small_cnn_bn" if self.norm == "batch" else "small_cnn"

    def build(self, spec: InputSpec) -> nn.Module:
        """Module from images [b, C, H, W] to logits [b, classes]."""
        batch_norm = self.norm == "batch"
        layers: list[nn.Module] = []
        for depth, (width_in, width_out) in enumerate(pairwise([spec.channels, *self.channels])):
            layers += _convolution(width_in, width_out, batch_norm, stride=1 if depth == 0 else 2)
        # A fixed kernel, not adaptive pooling, because its gradient is deterministic on GPUs too.
        grid = [_coarse_grid(side, len(self.channels)) for side in (spec.height, spec.width)]
        (kernel_height, rows), (kernel_width, columns) = grid
        features = self.channels[-1] * rows * columns
        pool = nn.AvgPool2d((kernel_height, kernel_width))
        return nn.Sequential(*layers, pool, nn.Flatten(), nn.Linear(features, spec.classes))


@dataclass(frozen=True, kw_only=True)
class SmallFCN(Model):
    """A small U-Net: convolutions of 3×3 down to a coarse map and up again, then one of 1×1 to the classes.

    After O. Ronneberger, P. Fischer and T. Brox, U-Net: Convolutional Networks for Biomedical Image
    Segmentation, MICCAI 2015, arXiv:1505.04597: each convolution after the first halves the sides; then they
    are doubled again, each time concatenated with the map of that size. Each is followed by ReLU.

    channels: of the maps from the finest to the coarsest, at least two.
    norm: "none" (convolutions have a bias) or "batch" (batch normalisation after each but the last).
    Any image size works. 10,701 parameters on images of 3 channels with 5 classes.
    Raises ValueError for a width below 1, fewer than two widths, an unknown norm.
    """

    task: ClassVar[str] = "segmentation"

    channels: list[int] = field(default_factory=lambda: [8, 16, 32])
    norm: str = "none"

    def __post_init__(self) -> None:
        if len(self.channels) < 2:
            raise ValueError(f"model.channels={self.channels}: must name at least two widths")
        _check_channels(self.channels, self.norm)

    @property
    def name(self) -> str:
        return "small_fcn_bn" if self.norm == "batch" else "small_fcn"

    def build(self, spec: InputSpec) -> nn.Module:
        """Module from images [b, C, H, W] to logits [b, classes, H, W]."""
        return DownAndUp(self.channels, spec, batch_norm=self.norm == "batch")


class DownAndUp(nn.Module):
    """See `SmallFCN`."""

    def __init__(self, channels: list[int], spec: InputSpec, *, batch_norm: bool) -> None:
        super().__init__()
        widths = list(pairwise([spec.channels, *channels]))
        self.down = nn.ModuleList(
            _convolution(width_in, width_out, batch_norm, stride=1 if depth == 0 else 2)
            for depth, (width_in, width_out) in enumerate(widths)
        )
        up, coarse = [], channels[-1]
        for finer, width_out in zip(channels[-2::-1], [*channels[-3::-1], channels[0]], strict=True):
            up.append(_convolution(coarse + finer, width_out, batch_norm))
            coarse = width_out
        self.up = nn.ModuleList(up)
        self.head = nn.Conv2d(coarse, spec.classes, 1)

    def forward(self, images: Tensor) -> Tensor:
        """Logits [b, classes, H, W] of images [b, C, H, W]."""
        maps = [images]
        for down in self.down:
            maps.append(down(maps[-1]))
        x = maps[-1]
        for up, finer in zip(self.up, maps[-2:0:-1], strict=True):
            # Nearest neighbour, because its gradient is deterministic on GPUs too.
            x = up(torch.cat([interpolate(x, size=finer.shape[-2:], mode="nearest"), finer], 1))
        return self.head(x)


def _convolution(width_in: int, width_out: int, batch_norm: bool, stride: int = 1) -> nn.Sequential:
    layers: list[nn.Module] = [
        nn.Conv2d(width_in, width_out, 3, stride=stride, padding=1, bias=not batch_norm)
    ]
    if batch_norm:
        layers.append(nn.BatchNorm2d(width_out))
    return nn.Sequential(*layers, nn.ReLU())


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


def _check_channels(channels: list[int], norm: str) -> None:
    _check_widths("model.channels", channels)
    if norm not in NORMS:
        raise ValueError(f"model.norm={norm}: must be one of {', '.join(NORMS)}")
