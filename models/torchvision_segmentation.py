"""Every torchvision segmentation model by name, untrained, without auxiliary classifier, on any image size.

Their logits have the size of the images. Grey images are repeated to three channels. All weights,
the backbone's too, are drawn from torch's global generator, which the caller seeds.
"""

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor, nn

from .spec import InputSpec, Model


@dataclass(frozen=True, kw_only=True)
class TorchvisionSegmentation(Model):
    """A model of torchvision's registry.

    name: as in `torchvision.models.list_models(module=torchvision.models.segmentation)`;
    zero_init_residual: the last norm of each block of a ResNet backbone starts at zero, so that it starts as
    the identity (Goyal et al. 2017, arXiv:1706.02677, section 5.1); no effect on other backbones.
    """

    suggested_epochs: ClassVar[int] = 6  # for `train.epochs=auto`
    task: ClassVar[str] = "segmentation"

    name: str
    zero_init_residual: bool = False

    def build(self, spec: InputSpec) -> nn.Module:
        """Module from images [b, 1 or 3, H, W] to logits [b, classes, H, W].

        Raises ValueError for an unknown name and for images with neither 1 nor 3 channels.
        """
        # torchvision takes a second to import, and the built-in small models do not need it.
        from torchvision import models

        if spec.channels not in (1, 3):
            raise ValueError(f"dataset.channels={spec.channels}: model {self.name} takes 1 or 3")
        known = models.list_models(module=models.segmentation)
        if self.name not in known:
            raise ValueError(f"model.name={self.name}: unknown to torchvision; known: {', '.join(known)}")
        # Without weights_backbone=None torchvision would download a trained backbone. lraspp has no auxiliary
        # classifier and so no such option.
        options = {} if self.name.startswith("lraspp") else {"aux_loss": False}
        network = models.get_model(
            self.name, weights=None, weights_backbone=None, num_classes=spec.classes, **options
        )
        if self.zero_init_residual:
            _zero_last_norms(network)
        return OutputAlone(network)


def _zero_last_norms(network: nn.Module) -> None:
    from torchvision.models.resnet import Bottleneck  # the only block of the ResNets that have such models

    for block in network.modules():
        if isinstance(block, Bottleneck):
            nn.init.zeros_(block.get_parameter("bn3.weight"))


class OutputAlone(nn.Module):
    """Returns only the output `out` of a network, its logits."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, images: Tensor) -> Tensor:
        """Logits [b, classes, H, W] of images [b, 1 or 3, H, W]."""
        return self.network(images.expand(-1, 3, -1, -1))["out"]
