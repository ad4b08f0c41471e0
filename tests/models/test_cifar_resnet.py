"""The ResNets for CIFAR: the sizes of the paper, free shortcuts, blocks that start as the identity."""

import pytest
import torch
from torch import nn

from daso_bench.models.cifar_resnet import CifarResNet, ResidualBlock
from daso_bench.models.spec import InputSpec

CIFAR = InputSpec(3, 32, 32, 10)


def parameters(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


@pytest.mark.parametrize(("depth", "million"), [(20, 0.27), (32, 0.46), (44, 0.66), (56, 0.85), (110, 1.7)])
def test_parameters_are_those_of_the_papers_table(depth: int, million: float):
    """Table 6 of He et al. 2016, rounded as there."""
    assert parameters(CifarResNet(depth=depth).build(CIFAR)) / 1e6 == pytest.approx(million, abs=0.035)


def test_parameters_by_hand():
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


def test_grey_images_of_other_sizes_get_logits_and_every_parameter_a_gradient():
    built = CifarResNet(depth=8, zero_init_last=False).build(InputSpec(1, 28, 20, 7))
    logits = built(torch.randn(3, 1, 28, 20))
    assert logits.shape == (3, 7)
    logits.sum().backward()
    assert all(parameter.grad is not None for parameter in built.parameters())


@pytest.mark.parametrize("depth", [2, 18, 51])
def test_other_depths_are_refused(depth: int):
    with pytest.raises(ValueError, match=rf"^model\.depth={depth}: must be 6n \+ 2"):
        CifarResNet(depth=depth)
