"""Every torchvision model takes small and grey images and gives logits, for segmentation of each pixel."""

import subprocess
import sys

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.overrides import TorchFunctionMode
from torchvision import models

from daso_bench.models.spec import InputSpec
from daso_bench.models.torchvision_zoo import Adapted, Torchvision, TorchvisionSegmentation, usable_size

NAMES = models.list_models(module=models)
GREY_8, COLOUR_32 = InputSpec(1, 8, 8, 10), InputSpec(3, 32, 32, 7)


IN_PLACE = (Tensor.normal_, Tensor.uniform_, Tensor.fill_, Tensor.zero_, Tensor.erfinv_, Tensor.clamp_)


class ParametersOnMeta(TorchFunctionMode):
    """Parameters have a shape and no data and are not initialised; all else in a constructor really happens.

    `torch.device("meta")` would stop RegNet, which computes its widths with tensors.
    """

    def __torch_function__(self, func, types, args=(), kwargs=None):
        kwargs = dict(kwargs or {})
        if func in (torch.empty, torch.zeros, torch.ones):
            kwargs["device"] = "meta"
        target = args[0] if args else kwargs.get("tensor")
        initialises = func in IN_PLACE or getattr(func, "__module__", "") == "torch.nn.init"
        if initialises and isinstance(target, Tensor) and target.is_meta:
            return target
        return func(*args, **kwargs)


def without_data(name: str, spec: InputSpec) -> nn.Module:
    with ParametersOnMeta():
        return Torchvision(name=name).build(spec).to("meta")


def images_for(spec: InputSpec, batch: int = 2, device: str = "cpu") -> Tensor:
    return torch.linspace(-1, 1, batch * spec.channels * spec.height * spec.width, device=device).view(
        batch, spec.channels, spec.height, spec.width
    )


def shape_of_batch_norm(
    images: Tensor, mean: object, var: object, weight: object, bias: object, training: bool, *rest: object
) -> Tensor:
    """Batch normalisation without its arithmetic, which takes half of the time on the meta device."""
    if training and images.numel() == images.shape[1]:
        raise ValueError("Expected more than 1 value per channel when training")
    return torch.empty_like(images)


@pytest.mark.parametrize("name", NAMES)
@torch.no_grad()
def test_every_model_gives_logits_in_train_and_eval_mode(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nn.functional, "batch_norm", shape_of_batch_norm)
    for spec, train in ((GREY_8, True), (COLOUR_32, False)):
        model = without_data(name, spec).train(train)
        logits = model(images_for(spec, device="meta"))
        assert logits.shape == (2, spec.classes)


@pytest.mark.parametrize("name", ["resnet18", "mobilenet_v3_small", "vit_b_16"])
@pytest.mark.parametrize("spec", [GREY_8, COLOUR_32], ids=str)
def test_a_real_step_gives_every_parameter_a_finite_gradient(name: str, spec: InputSpec) -> None:
    torch.manual_seed(0)
    model = Torchvision(name=name).build(spec)
    logits = model(images_for(spec))
    assert logits.shape == (2, spec.classes)
    cross_entropy(logits, torch.tensor([1, 2])).backward()
    for parameter in model.parameters():
        assert parameter.grad is not None
        assert parameter.grad.isfinite().all()


def test_the_resnet_family_gets_the_small_stem_up_to_64_pixels() -> None:
    def stem(name: str, side: int, small_images: str = "auto") -> tuple[object, bool, object]:
        with torch.device("meta"):
            built = Torchvision(name=name, small_images=small_images).build(InputSpec(3, side, side, 10))
        assert isinstance(built, Adapted)
        conv = built.network.get_submodule("conv1")
        assert isinstance(conv, nn.Conv2d)
        pooled = isinstance(built.network.get_submodule("maxpool"), nn.MaxPool2d)
        return (*conv.kernel_size, *conv.stride, *conv.padding), pooled, built.size

    small, usual = (3, 3, 1, 1, 1, 1), (7, 7, 2, 2, 3, 3)
    for name in ("resnet18", "resnext50_32x4d", "wide_resnet50_2"):
        assert stem(name, 8) == (small, False, (8, 8))
        assert stem(name, 64) == (small, False, (64, 64))
        assert stem(name, 65) == (usual, True, (65, 65))
        assert stem(name, 8, "resize") == (usual, True, (32, 32))


@pytest.mark.parametrize(
    ("name", "given", "size"),
    [
        ("vgg16", (8, 8), (32, 32)),
        ("vgg16", (28, 50), (32, 50)),
        ("vgg16", (224, 224), (224, 224)),
        ("alexnet", (32, 32), (63, 63)),
        ("inception_v3", (32, 32), (75, 75)),
        ("vit_b_16", (8, 8), (32, 32)),
        ("vit_b_16", (33, 10), (48, 48)),
        ("vit_h_14", (224, 224), (224, 224)),
        ("vit_b_32", (8, 8), (64, 64)),
        ("maxvit_t", (8, 8), (224, 224)),
        ("maxvit_t", (225, 8), (448, 448)),
    ],
)
def test_small_images_are_enlarged_to_what_the_model_can_use(
    name: str, given: tuple[int, int], size: tuple[int, int]
) -> None:
    assert usable_size(name, *given) == size


def test_the_network_sees_the_grey_image_three_times_and_enlarged() -> None:
    seen: list[Tensor] = []

    class Network(nn.Module):
        def forward(self, images: Tensor) -> Tensor:
            seen.append(images)
            return images

    Adapted(Network(), (4, 4))(torch.tensor([[[[1.0, 3.0], [5.0, 7.0]]]]))
    assert seen[0].shape == (1, 3, 4, 4)
    assert torch.equal(seen[0][0, 0], seen[0][0, 2])
    assert seen[0][0, 0, 0].tolist() == [1.0, 1.5, 2.5, 3.0]  # bilinear, pixel centres kept


@pytest.mark.parametrize("name", ["resnet18", "googlenet", "mobilenet_v3_small"])
def test_the_global_seed_decides_all_weights(name: str) -> None:
    def weights(seed: int) -> Tensor:
        torch.manual_seed(seed)
        return nn.utils.parameters_to_vector(Torchvision(name=name).build(GREY_8).parameters())

    first = weights(1)
    assert torch.equal(first, weights(1))
    assert not torch.equal(first, weights(2))


def test_wrong_requests_are_refused() -> None:
    with pytest.raises(ValueError, match=r"^model\.small_images=never: must be auto or resize$"):
        Torchvision(name="resnet18", small_images="never")
    with pytest.raises(ValueError, match=r"^model\.name=resnet19: unknown to torchvision; known: alexnet, "):
        Torchvision(name="resnet19").build(GREY_8)
    with pytest.raises(ValueError, match=r"^dataset\.channels=4: model resnet18 takes 1 or 3$"):
        Torchvision(name="resnet18").build(InputSpec(4, 8, 8, 10))
    with pytest.raises(ValueError, match=r"^model\.name=unet: unknown to torchvision; known: deeplabv3_"):
        TorchvisionSegmentation(name="unet").build(InputSpec(3, 8, 8, 2))
    with pytest.raises(ValueError, match=r"^dataset\.channels=2: model lraspp_mobilenet_v3_large takes"):
        TorchvisionSegmentation(name="lraspp_mobilenet_v3_large").build(InputSpec(2, 8, 8, 2))


def test_torchvision_is_imported_by_build_only() -> None:
    code = (
        "import sys; from daso_bench.models.torchvision_zoo import Torchvision; "
        "Torchvision(name='resnet18'); assert 'torchvision' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


# ------------------------------------------------------------------ segmentation


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
