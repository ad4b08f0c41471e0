"""The small models: shapes, sizes, gradients, and the seed that decides their weights."""

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from daso_bench.models.small import MLP, SmallCNN, SmallFCN
from daso_bench.models.spec import InputSpec, Model

DIGITS, FASHION, COLOUR = InputSpec(1, 8, 8, 10), InputSpec(1, 28, 28, 10), InputSpec(3, 32, 32, 7)
SHAPES = InputSpec(3, 32, 32, 5)
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
    ],
)
def test_wrong_values_are_refused(make: type[MLP], message: str) -> None:
    with pytest.raises(ValueError, match=f"^{message}$"):
        make()
