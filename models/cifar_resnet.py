"""The ResNets for CIFAR-10: ResNet-20, -32, -44, -56 and -110, on images of any size.

K. He, X. Zhang, S. Ren and J. Sun, Deep Residual Learning for Image Recognition, CVPR 2016,
arXiv:1512.03385, section 4.2: a 3×3 convolution to 16 channels; three stages of n blocks of two 3×3
convolutions each, with 16, 32 and 64 channels, the later two begun with stride 2; global means; one linear
layer; 6n + 2 layers with weights. Shortcuts have no parameters (option A): every second pixel, and zeros for
new channels. Weights are drawn as in K. He et al., Delving Deep into Rectifiers, 2015, arXiv:1502.01852, from
torch's global generator, which the caller seeds. Ours differs in `zero_init_last`.
"""

from dataclasses import dataclass

from torch import Tensor, nn
from torch.nn import functional

from .spec import InputSpec, Model

WIDTHS = (16, 32, 64)


@dataclass(frozen=True, kw_only=True)
class CifarResNet(Model):
    """With 10 classes and 3 channels 269,722 parameters at depth 20 and 853,018 at depth 56.

    depth: layers with weights, 6n + 2. zero_init_last: each block's last batch normalisation starts at 0, so
    that the block starts as the identity (P. Goyal et al., 2017, arXiv:1706.02677, section 5.1); false: at 1,
    as in the paper.
    Raises ValueError for a depth that is not 8, 14, 20, …
    """

    depth: int = 20
    zero_init_last: bool = True

    def __post_init__(self) -> None:
        if self.depth < 8 or self.depth % 6 != 2:
            raise ValueError(f"model.depth={self.depth}: must be 6n + 2 (20, 32, 44, 56, 110)")

    @property
    def name(self) -> str:
        return f"resnet{self.depth}"

    def build(self, spec: InputSpec) -> nn.Module:
        """Module from images [b, C, H, W] to logits [b, classes]."""
        network = ResidualNetwork(spec, blocks=(self.depth - 2) // 6)
        for module in network.modules():
            if isinstance(module, nn.Conv2d | nn.Linear):
                nn.init.kaiming_normal_(module.weight)
            if isinstance(module, ResidualBlock) and self.zero_init_last:
                nn.init.zeros_(module.norm2.weight)
        return network


class ResidualNetwork(nn.Module):
    """The network of the module's docstring; `blocks`: n."""

    def __init__(self, spec: InputSpec, blocks: int) -> None:
        super().__init__()
        self.conv = _convolution(spec.channels, WIDTHS[0])
        self.norm = nn.BatchNorm2d(WIDTHS[0])
        stages, width_in = [], WIDTHS[0]
        for width in WIDTHS:
            stages.append(ResidualBlock(width_in, width, stride=1 if width == width_in else 2))
            stages += [ResidualBlock(width, width) for _ in range(blocks - 1)]
            width_in = width
        self.blocks = nn.Sequential(*stages)
        self.head = nn.Linear(width_in, spec.classes)

    def forward(self, images: Tensor) -> Tensor:
        """Logits [b, classes] of images [b, C, H, W]."""
        x = self.blocks(functional.relu(self.norm(self.conv(images))))
        return self.head(x.mean((2, 3)))


class ResidualBlock(nn.Module):
    """relu(x + norm(conv(relu(norm(conv(x)))))); if channels or pixels change, x as in option A."""

    def __init__(self, width_in: int, width: int, stride: int = 1) -> None:
        super().__init__()
        self.conv1, self.norm1 = _convolution(width_in, width, stride), nn.BatchNorm2d(width)
        self.conv2, self.norm2 = _convolution(width, width), nn.BatchNorm2d(width)
        self.stride, self.new = stride, width - width_in

    def forward(self, x: Tensor) -> Tensor:
        """[b, width, ⌈H / stride⌉, ⌈W / stride⌉] of [b, width_in, H, W]."""
        change = self.norm2(self.conv2(functional.relu(self.norm1(self.conv1(x)))))
        if self.new:
            half = self.new // 2
            x = x[:, :, :: self.stride, :: self.stride]
            x = functional.pad(x, (0, 0, 0, 0, half, self.new - half))
        return functional.relu(x + change)


def _convolution(width_in: int, width: int, stride: int = 1) -> nn.Conv2d:
    return nn.Conv2d(width_in, width, 3, stride=stride, padding=1, bias=False)
