"""A small U-Net for laptops, for segmentation.

After O. Ronneberger, P. Fischer and T. Brox, U-Net: Convolutional Networks for Biomedical Image Segmentation,
MICCAI 2015, arXiv:1505.04597: each convolution after the first halves the sides; then they are doubled again,
each time concatenated with the map of that size. All weights are drawn from torch's global generator, which
the caller seeds.
"""

from dataclasses import dataclass, field
from itertools import pairwise
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn.functional import interpolate

from .small import NORMS
from .spec import InputSpec, Model


@dataclass(frozen=True, kw_only=True)
class SmallFCN(Model):
    """Convolutions of 3×3 down to a coarse map and up again, each with ReLU; then one of 1×1 to the classes.

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
        for position, width in enumerate(self.channels):
            if width < 1:
                raise ValueError(f"model.channels[{position}]={width}: must be >= 1")
        if self.norm not in NORMS:
            raise ValueError(f"model.norm={self.norm}: must be one of {', '.join(NORMS)}")

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
