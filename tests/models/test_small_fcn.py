"""The small fully convolutional network: a label for each pixel of images of any size."""

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from daso_bench.models.small_fcn import SmallFCN
from daso_bench.models.spec import InputSpec

SHAPES = InputSpec(3, 32, 32, 5)


def parameters(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


@pytest.mark.parametrize(
    "model", [SmallFCN(), SmallFCN(norm="batch"), SmallFCN(channels=[2, 3]), SmallFCN(channels=[2, 3, 4, 5])]
)
@pytest.mark.parametrize("spec", [SHAPES, InputSpec(1, 7, 13, 3), InputSpec(2, 3, 50, 4)], ids=str)
def test_every_pixel_gets_logits_and_every_parameter_a_gradient(model: SmallFCN, spec: InputSpec):
    built = model.build(spec)
    logits = built(torch.randn(2, spec.channels, spec.height, spec.width))
    assert logits.shape == (2, spec.classes, spec.height, spec.width)
    cross_entropy(logits, torch.zeros(2, spec.height, spec.width, dtype=torch.int64)).backward()
    assert all(parameter.grad is not None for parameter in built.parameters())


def test_parameters_by_hand():
    down = (9 * 3 + 1) * 8 + (9 * 8 + 1) * 16 + (9 * 16 + 1) * 32
    up = (9 * (32 + 16) + 1) * 8 + (9 * (8 + 8) + 1) * 8
    assert parameters(SmallFCN().build(SHAPES)) == down + up + (8 + 1) * 5 == 10_701
    norms = 2 * (8 + 16 + 32 + 8 + 8) - (8 + 16 + 32 + 8 + 8)  # two numbers a channel for one bias
    assert parameters(SmallFCN(norm="batch").build(SHAPES)) == 10_701 + norms


def test_the_finest_map_reaches_the_head_beside_the_coarse_ones():
    """One pixel's change stays near it where the coarse path is cut."""
    torch.manual_seed(0)
    built = SmallFCN().build(SHAPES)
    images = torch.randn(1, 3, 32, 32)
    changed = images.clone()
    changed[0, :, 16, 16] += 1
    moved = (built(changed) - built(images)).abs().sum(1)[0]
    assert moved[16, 16] > 0
    assert moved[:4].max() == 0


def test_names_and_norms():
    assert (SmallFCN().name, SmallFCN(norm="batch").name) == ("small_fcn", "small_fcn_bn")
    for norm, count in (("none", 0), ("batch", 5)):
        built = SmallFCN(norm=norm).build(SHAPES)
        assert sum(isinstance(module, nn.BatchNorm2d) for module in built.modules()) == count
    assert SmallFCN.task == "segmentation"


def test_the_global_seed_decides_the_weights():
    def weights(seed: int) -> torch.Tensor:
        torch.manual_seed(seed)
        return nn.utils.parameters_to_vector(SmallFCN().build(SHAPES).parameters())

    assert torch.equal(weights(1), weights(1))
    assert not torch.equal(weights(1), weights(2))


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"channels": [8]}, r"model\.channels=\[8\]: must name at least two widths"),
        ({"channels": [8, 0]}, r"model\.channels\[1\]=0: must be >= 1"),
        ({"norm": "group"}, r"model\.norm=group: must be one of none, batch"),
    ],
)
def test_wrong_values_are_refused(keys: dict, message: str):
    with pytest.raises(ValueError, match=f"^{message}$"):
        SmallFCN(**keys)
