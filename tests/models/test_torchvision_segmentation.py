"""torchvision's segmentation models by name: logits for each pixel, no download, no auxiliary classifier."""

import pytest
import torch
from torch import Tensor, nn
from torchvision import models

from daso_bench.models.spec import InputSpec
from daso_bench.models.torchvision_zoo import TorchvisionSegmentation


@pytest.mark.parametrize("channels", [1, 3])
def test_every_pixel_gets_logits_of_the_datas_classes(channels: int):
    spec = InputSpec(channels, 40, 56, 5)
    built = TorchvisionSegmentation(name="lraspp_mobilenet_v3_large").build(spec)
    logits = built(torch.randn(2, channels, 40, 56))
    assert logits.shape == (2, 5, 40, 56)
    logits.sum().backward()
    assert all(parameter.grad is not None for parameter in built.parameters())


def last_norms(built: nn.Module) -> list[Tensor]:
    """The weights of the last norm of each ResNet block."""
    named = dict(built.named_parameters())
    return [weight for name, weight in named.items() if name.endswith("bn3.weight")]


@pytest.mark.parametrize(("zero", "value"), [(True, 0.0), (False, 1.0)])
def test_blocks_of_a_resnet_backbone_start_as_the_identity_where_that_is_asked_for(zero: bool, value: float):
    with torch.device("meta"):
        made = TorchvisionSegmentation(name="fcn_resnet101").build(InputSpec(3, 32, 32, 4))
    assert len(last_norms(made)) == 33
    model = TorchvisionSegmentation(name="fcn_resnet50", zero_init_residual=zero)
    built = model.build(InputSpec(3, 32, 32, 4))
    assert len(last_norms(built)) == 16
    assert all((weight == value).all() for weight in last_norms(built))
    others = [weight for name, weight in built.named_parameters() if name.endswith("bn2.weight")]
    assert all((weight == 1).all() for weight in others)


@pytest.mark.parametrize("name", models.list_models(module=models.segmentation))
def test_no_weights_are_fetched(name: str, monkeypatch: pytest.MonkeyPatch):
    """A trained backbone would be downloaded, and a machine with a copy would train from it."""
    fetched: list[str] = []

    def fetch(url: str, *args: object, **keys: object) -> dict[str, Tensor]:
        fetched.append(url)
        raise AssertionError(url)

    monkeypatch.setattr(torch.hub, "load_state_dict_from_url", fetch)
    monkeypatch.setattr("torchvision.models._api.load_state_dict_from_url", fetch)
    with torch.device("meta"):
        TorchvisionSegmentation(name=name).build(InputSpec(3, 32, 32, 4))
    assert fetched == []


def test_wrong_requests_are_refused():
    with pytest.raises(ValueError, match=r"^model\.name=unet: unknown to torchvision; known: deeplabv3_"):
        TorchvisionSegmentation(name="unet").build(InputSpec(3, 8, 8, 2))
    with pytest.raises(ValueError, match=r"^dataset\.channels=2: model lraspp_mobilenet_v3_large takes"):
        TorchvisionSegmentation(name="lraspp_mobilenet_v3_large").build(InputSpec(2, 8, 8, 2))
