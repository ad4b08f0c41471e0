"""Scores: whole numbers of hits, and what counts as reaching a target."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from daso_bench.datasets.data import Split
from daso_bench.runner.evaluation import Score, score
from daso_bench.runner.marks import Marks


@pytest.mark.parametrize(
    ("target", "count", "needed"), [(0.95, 360, 342), (0.6, 5, 3), (1.0, 7, 7), (0.3, 10, 3), (1 / 3, 9, 3)]
)
def test_the_target_is_a_number_right(target: float, count: int, needed: int):
    assert Score(needed, count, 0.0).reaches(target, "accuracy")
    assert not Score(needed - 1, count, 0.0).reaches(target, "accuracy")


def test_a_loss_target_is_an_upper_limit_and_nan_never_reaches_it():
    assert Score(0, 2, 1.0).reaches(0.5, "loss")
    assert not Score(0, 2, 1.1).reaches(0.5, "loss")
    assert not Score(0, 2, math.nan).reaches(0.5, "loss")


class Fixed(nn.Module):
    def __init__(self, outputs: Tensor) -> None:
        super().__init__()
        self.outputs = outputs

    def forward(self, x: Tensor) -> Tensor:
        assert not self.training
        return self.outputs[x[:, 0, 0, 0].long()]


def test_outputs_that_are_not_finite_are_wrong():
    outputs = torch.tensor([[5.0, 0.0], [0.0, 5.0], [math.nan, 0.0], [math.inf, 0.0], [9.0, 0.0]])
    images = torch.arange(5.0).view(5, 1, 1, 1)
    split = Split(images=images, labels=torch.tensor([0, 1, 0, 0, 1]), mean=(0.0,), std=(1.0,))
    model = Fixed(outputs).train()
    got = score(model, split, torch.arange(5), torch.device("cpu"), torch.float32, batch_size=2)
    assert (got.correct, got.count) == (2, 5)
    assert math.isnan(got.loss)
    assert model.training, "the mode is restored"


@given(st.integers(1, 50), st.floats(0, 0.999), st.lists(st.integers(1, 40), min_size=1, max_size=60))
def test_each_mark_is_passed_once(every: int, phase: float, steps: list[int]):
    marks, samples = Marks(every, phase), 0
    expected = {k * every + round(phase * every) for k in range(sum(steps) + 1)} - {0}
    for step in steps:
        inside = expected & set(range(samples + 1, samples + step + 1))
        assert marks.passed(samples, samples + step) == bool(inside)
        samples += step


def test_no_marks_without_a_period():
    assert not Marks(None).passed(0, 10**9)
