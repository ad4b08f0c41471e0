"""torchvision's segmentation models by name: logits for each pixel, no download, no auxiliary classifier."""

import pytest
import torch

from daso_bench.models.spec import InputSpec
from daso_bench.models.torchvision_segmentation import TorchvisionSegmentation


@pytest.mark.parametrize("channels", [1, 3])
def test_every_pixel_gets_logits_of_the_datas_classes(channels: int):
    spec = InputSpec(channels, 40, 56, 5)
    built = TorchvisionSegmentation(name="lraspp_mobilenet_v3_large").build(spec)
    logits = built(torch.randn(2, channels, 40, 56))
    assert logits.shape == (2, 5, 40, 56)
    logits.sum().backward()
    assert all(parameter.grad is not None for parameter in built.parameters())


def test_there_is_no_auxiliary_classifier():
    built = TorchvisionSegmentation(name="deeplabv3_mobilenet_v3_large").build(InputSpec(3, 64, 64, 19))
    assert not any("aux" in name for name, _ in built.named_parameters())


def test_an_unknown_name_names_the_known_ones():
    with pytest.raises(ValueError, match=r"^model\.name=unet: unknown to torchvision; known: deeplabv3_"):
        TorchvisionSegmentation(name="unet").build(InputSpec(3, 8, 8, 2))


def test_images_of_two_channels_are_refused():
    with pytest.raises(
        ValueError, match=r"^dataset\.channels=2: model lraspp_mobilenet_v3_large takes 1 or 3"
    ):
        TorchvisionSegmentation(name="lraspp_mobilenet_v3_large").build(InputSpec(2, 8, 8, 2))
