"""Every torchvision classification and segmentation model by name, untrained, on images of any size.

`scripts/model_configs.py` writes conf/model/NAME.yaml for each of them.

The module that is built adapts the images, so that all arms of a study see the same: grey images are repeated
to three channels; up to 64 pixels a side the ResNet family gets the usual stem for small images
(K. He et al., Deep Residual Learning for Image Recognition, 2015, arXiv:1512.03385, section 4.2: 3×3
convolution of stride 1, no max-pooling); other families get small images enlarged bilinearly to the smallest
side they can use. The last norm of each ResNet block starts at zero, so that a block starts as the identity
(P. Goyal et al., Accurate, Large Minibatch SGD, 2017, arXiv:1706.02677, section 5.1). All weights are drawn
from torch's global generator, which the caller seeds.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor, nn
from torch.nn.functional import interpolate

from .spec import InputSpec, Model

SMALL_IMAGES = ("auto", "resize")
SMALL_STEM_UP_TO = 64  # pixels a side; Tiny ImageNet's size, the largest for which this stem is usual
RESNET_FAMILY = ("resnet", "resnext", "wide_resnet")

# Pixels per side. Most families reduce the image by 32, so that their last feature map is one pixel; the
# others need more for their unpadded stems. The tests run all models at their smallest size.
SMALLEST = 32
SMALLEST_OF = {"alexnet": 63, "inception": 75}
# Models of a fixed size: images are enlarged to a square whose side is a multiple of this.
PATCH = {"vit_b_16": 16, "vit_l_16": 16, "vit_b_32": 32, "vit_l_32": 32, "vit_h_14": 14}
MULTIPLE_OF = {"maxvit_t": 224, **PATCH}


@dataclass(frozen=True, kw_only=True)
class Torchvision(Model):
    """A model of torchvision's registry.

    name: as in `torchvision.models.list_models(module=torchvision.models)`;
    small_images: "auto" (ResNet family: small-image stem; others: enlarge) or "resize" (enlarge for all);
    zero_init_residual: blocks of the ResNet family start as the identity; no effect on other families.
    Raises ValueError for an unknown `small_images`.
    """

    suggested_epochs: ClassVar[int] = 6  # for `train.epochs=auto`: a first run on a laptop takes minutes

    name: str
    small_images: str = "auto"
    zero_init_residual: bool = True

    def __post_init__(self) -> None:
        if self.small_images not in SMALL_IMAGES:
            raise ValueError(f"model.small_images={self.small_images}: must be {' or '.join(SMALL_IMAGES)}")

    def build(self, spec: InputSpec) -> nn.Module:
        """Module from images [b, 1 or 3, H, W] to logits [b, classes], in train and in eval mode alike.

        Raises ValueError for an unknown name and for images with neither 1 nor 3 channels.
        """
        _check_channels(self.name, spec)
        small_stem = (
            self.small_images == "auto"
            and self.name.startswith(RESNET_FAMILY)
            and max(spec.height, spec.width) <= SMALL_STEM_UP_TO
        )
        size = (spec.height, spec.width) if small_stem else usable_size(self.name, spec.height, spec.width)
        network = self._network(size, spec.classes)
        if small_stem:
            _give_small_stem(network)
        return Adapted(network, size)

    def _network(self, size: tuple[int, int], classes: int) -> nn.Module:
        # torchvision takes a second to import, and the built-in small models do not need it.
        from torchvision import models

        _check_known(self.name, models.list_models(module=models))
        options: dict[str, object] = {"num_classes": classes}
        if self.name in ("googlenet", "inception_v3"):
            # Without auxiliary heads the output is only the logits; init_weights is their own initialisation.
            options |= {"aux_logits": False, "init_weights": True}
        elif self.name.startswith("vit"):
            options["image_size"] = size[0]
        elif self.name == "maxvit_t":
            options["input_size"] = size
        elif self.name.startswith(RESNET_FAMILY):
            options["zero_init_residual"] = self.zero_init_residual
        return models.get_model(self.name, weights=None, **options)


class Adapted(nn.Module):
    """Adapts images to a network of torchvision, and returns its logits alone.

    size: (height, width) to which other images are enlarged; None leaves their size.
    """

    def __init__(self, network: nn.Module, size: tuple[int, int] | None = None) -> None:
        super().__init__()
        self.network = network
        self.size = size

    def forward(self, images: Tensor) -> Tensor:
        """Logits [b, classes], of segmentation [b, classes, H, W], of images [b, 1 or 3, H, W]."""
        if self.size is not None and images.shape[-2:] != self.size:
            images = interpolate(images, size=self.size, mode="bilinear", align_corners=False)
        output = self.network(images.expand(-1, 3, -1, -1))
        return output["out"] if isinstance(output, dict) else output  # of segmentation: {"out": logits}


def usable_size(name: str, height: int, width: int) -> tuple[int, int]:
    """The (height, width) to which images are enlarged for model `name`; never smaller than the images."""
    multiple = MULTIPLE_OF.get(name)
    if multiple is None:
        smallest = SMALLEST_OF.get(name.split("_")[0], SMALLEST)
        return max(height, smallest), max(width, smallest)
    # A transformer needs at least two patches per side: with one there is nothing to attend to.
    patches = -(-max(height, width) // multiple)
    side = multiple * max(patches, 2 if name in PATCH else 1)
    return side, side


def _give_small_stem(network: nn.Module) -> None:
    old = network.get_submodule("conv1")
    assert isinstance(old, nn.Conv2d)
    stem = nn.Conv2d(old.in_channels, old.out_channels, kernel_size=3, stride=1, padding=1, bias=False)
    nn.init.kaiming_normal_(stem.weight, mode="fan_out", nonlinearity="relu")  # as torchvision does
    network.set_submodule("conv1", stem)
    network.set_submodule("maxpool", nn.Identity())


def _check_channels(name: str, spec: InputSpec) -> None:
    if spec.channels not in (1, 3):
        raise ValueError(f"dataset.channels={spec.channels}: model {name} takes 1 or 3")


def _check_known(name: str, known: Sequence[str]) -> None:
    if name not in known:
        raise ValueError(f"model.name={name}: unknown to torchvision; known: {', '.join(known)}")


# ------------------------------------------------------------------ a label for each pixel


@dataclass(frozen=True, kw_only=True)
class TorchvisionSegmentation(Model):
    """A segmentation model of torchvision, without auxiliary classifier; logits have the size of the images.

    name: as in `torchvision.models.list_models(module=torchvision.models.segmentation)`;
    zero_init_residual: blocks of a ResNet backbone start as the identity; no effect on other backbones.
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

        _check_channels(self.name, spec)
        _check_known(self.name, models.list_models(module=models.segmentation))
        # Without weights_backbone=None torchvision would download a trained backbone. lraspp has no auxiliary
        # classifier and so no such option.
        options = {} if self.name.startswith("lraspp") else {"aux_loss": False}
        network = models.get_model(
            self.name, weights=None, weights_backbone=None, num_classes=spec.classes, **options
        )
        if self.zero_init_residual:
            for block in network.modules():
                # The only block of the ResNets that have such models.
                if isinstance(block, models.resnet.Bottleneck):
                    nn.init.zeros_(block.get_parameter("bn3.weight"))
        return Adapted(network)
