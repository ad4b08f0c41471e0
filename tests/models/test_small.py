"""Our own models: shapes, sizes, gradients, the seed that decides their weights, the ResNets for CIFAR."""

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from daso_bench.models.cifar_resnet import CifarResNet, ResidualBlock
from daso_bench.models.small import MLP, SmallCNN, SmallFCN
from daso_bench.models.spec import InputSpec, Model

DIGITS, FASHION, COLOUR = InputSpec(1, 8, 8, 10), InputSpec(1, 28, 28, 10), InputSpec(3, 32, 32, 7)
SHAPES, CIFAR = InputSpec(3, 32, 32, 5), InputSpec(3, 32, 32, 10)
MODELS = [
    MLP(),
    MLP(hidden=[]),
    MLP(hidden=[5, 4]),
    SmallCNN(),
    SmallCNN(norm="batch"),
    SmallCNN(channels=[4]),
    SmallFCN(),
    SmallFCN(norm="batch"),
    SmallFCN(channels=[2, 3]),
    CifarResNet(depth=8),
]


def images_for(spec: InputSpec, batch: int = 3) -> torch.Tensor:
    return torch.randn(
        batch, spec.channels, spec.height, spec.width, generator=torch.Generator().manual_seed(0)
    )


def parameters(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


@pytest.mark.parametrize("model", MODELS, ids=str)
@pytest.mark.parametrize("spec", [DIGITS, FASHION, COLOUR, InputSpec(2, 3, 50, 4)], ids=str)
def test_images_become_logits_and_every_parameter_gets_a_gradient(model: Model, spec: InputSpec) -> None:
    """Logits [b, classes], for segmentation [b, classes, height, width]."""
    built = model.build(spec)
    logits = built(images_for(spec))
    size = (spec.height, spec.width) if model.task == "segmentation" else ()
    assert logits.shape == (3, spec.classes, *size)
    labels = torch.tensor([0, 1, 2]).view(3, *(1 for _ in size)).expand(3, *size)
    cross_entropy(logits, labels).backward()
    assert all(parameter.grad is not None for parameter in built.parameters())


def test_parameters_by_hand() -> None:
    assert parameters(MLP().build(DIGITS)) == 64 * 64 + 64 + 64 * 10 + 10
    convolutions = (9 * 1 + 1) * 8 + (9 * 8 + 1) * 16 + (9 * 16 + 1) * 32
    assert parameters(SmallCNN().build(DIGITS)) == convolutions + (2 * 2 * 32 + 1) * 10 == 7178
    assert parameters(SmallCNN().build(FASHION)) == convolutions + (3 * 3 * 32 + 1) * 10 == 8778
    assert parameters(SmallCNN().build(InputSpec(3, 32, 32, 10))) == 11162
    assert parameters(SmallCNN(norm="batch").build(DIGITS)) == 7178 + 8 + 16 + 32  # two numbers for one bias
    down = (9 * 3 + 1) * 8 + (9 * 8 + 1) * 16 + (9 * 16 + 1) * 32
    up = (9 * (32 + 16) + 1) * 8 + (9 * (8 + 8) + 1) * 8
    assert parameters(SmallFCN().build(SHAPES)) == down + up + (8 + 1) * 5 == 10_701
    norms = 2 * (8 + 16 + 32 + 8 + 8) - (8 + 16 + 32 + 8 + 8)  # two numbers a channel for one bias
    assert parameters(SmallFCN(norm="batch").build(SHAPES)) == 10_701 + norms


def test_the_finest_map_reaches_the_head_beside_the_coarse_ones() -> None:
    """One pixel's change stays near it where the coarse path is cut."""
    torch.manual_seed(0)
    built = SmallFCN().build(SHAPES)
    images = torch.randn(1, 3, 32, 32)
    changed = images.clone()
    changed[0, :, 16, 16] += 1
    moved = (built(changed) - built(images)).abs().sum(1)[0]
    assert moved[16, 16] > 0
    assert moved[:4].max() == 0


@pytest.mark.parametrize("model", MODELS, ids=str)
def test_the_global_seed_decides_the_weights(model: Model) -> None:
    def weights(seed: int) -> torch.Tensor:
        torch.manual_seed(seed)
        return nn.utils.parameters_to_vector(model.build(DIGITS).parameters())

    assert torch.equal(weights(1), weights(1))
    assert not torch.equal(weights(1), weights(2))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: MLP(hidden=[64, 0]), r"model\.hidden\[1\]=0: must be >= 1"),
        (lambda: SmallCNN(channels=[]), r"model\.channels=\[\]: must name at least one width"),
        (lambda: SmallCNN(norm="group"), r"model\.norm=group: must be one of none, batch"),
        (lambda: SmallFCN(channels=[8]), r"model\.channels=\[8\]: must name at least two widths"),
        (lambda: SmallFCN(channels=[8, 0]), r"model\.channels\[1\]=0: must be >= 1"),
        *((lambda d=d: CifarResNet(depth=d), rf"model\.depth={d}: must be 6n \+ 2.*") for d in (2, 18, 51)),
    ],
)
def test_wrong_values_are_refused(make: type[MLP], message: str) -> None:
    with pytest.raises(ValueError, match=f"^{message}$"):
        make()


# ------------------------------------------------------------------ the ResNets for CIFAR


@pytest.mark.parametrize(("depth", "million"), [(20, 0.27), (32, 0.46), (44, 0.66), (56, 0.85), (110, 1.7)])
def test_parameters_are_those_of_the_papers_table(depth: int, million: float):
    """Table 6 of He et al. 2016, rounded as there."""
    assert parameters(CifarResNet(depth=depth).build(CIFAR)) / 1e6 == pytest.approx(million, abs=0.035)


def test_parameters_of_a_resnet_by_hand():
    blocks = (3 * 2 * 9 * 16 * 16) + (9 * 16 * 32 + 5 * 9 * 32 * 32) + (9 * 32 * 64 + 5 * 9 * 64 * 64)
    norms = 2 * (16 + 6 * 16 + 6 * 32 + 6 * 64)
    assert parameters(CifarResNet(depth=20).build(CIFAR)) == 9 * 3 * 16 + blocks + norms + 650 == 269_722


def test_a_shortcut_takes_every_second_pixel_and_adds_channels_of_zero():
    block = ResidualBlock(16, 32, stride=2).eval()
    nn.init.zeros_(block.norm2.weight)
    images = torch.rand(2, 16, 5, 4)
    out = block(images)
    assert out.shape == (2, 32, 3, 2)
    assert torch.equal(out[:, 8:24], images[:, :, ::2, ::2])
    assert out[:, :8].abs().max() == out[:, 24:].abs().max() == 0


@pytest.mark.parametrize("zero", [True, False])
def test_the_last_norm_of_each_block_starts_at_zero_if_asked(zero: bool):
    built = CifarResNet(zero_init_last=zero).build(CIFAR)
    lasts = [module.norm2.weight for module in built.modules() if isinstance(module, ResidualBlock)]
    assert len(lasts) == 9
    assert all(bool((weight == (0 if zero else 1)).all()) for weight in lasts)
