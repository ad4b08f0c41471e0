"""Scores: sums over samples, whole numbers of hits, and what counts as reaching a target."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from daso_bench.datasets.data import Split
from daso_bench.runner.config.tasks import Classification
from daso_bench.runner.records.target_crossing import meets
from daso_bench.runner.training.eval_schedule import passes_mark
from daso_bench.runner.training.evaluation import score

TASK = Classification(classes=2)


@pytest.mark.parametrize("metric", ["miou", "top5"])
def test_a_share_that_counts_no_hits_is_a_real_number_and_a_lower_limit(metric: str):
    """No ceil rule: of 10 samples 0.71 is enough for 0.705, where an accuracy needs 8 right."""
    row = {metric: 0.71, "correct": 7, "count": 10}
    assert meets(row, 0.705, metric)
    assert meets(row, 0.71, metric)
    assert not meets(row, 0.711, metric)
    assert not meets({**row, metric: math.nan}, 0.1, metric)
    assert not meets({"accuracy": 0.9}, 0.1, metric)


def test_a_loss_target_is_an_upper_limit():
    assert meets({"loss": 0.5}, 0.5, "loss")
    assert not meets({"loss": 0.55}, 0.5, "loss")


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
    scored = score(
        model, split, torch.arange(5), torch.device("cpu"), torch.float32, task=TASK, batch_size=2
    ).numbers()
    assert (scored["correct"], scored["count"]) == (2, 5)
    assert math.isnan(scored["loss"])
    assert model.training, "the mode is restored"


@given(st.integers(1, 50), st.floats(0, 0.999), st.lists(st.integers(1, 40), min_size=1, max_size=60))
def test_each_mark_is_passed_once(every: int, phase: float, steps: list[int]):
    samples = 0
    expected = {k * every + round(phase * every) for k in range(sum(steps) + 1)} - {0}
    for step in steps:
        inside = expected & set(range(samples + 1, samples + step + 1))
        assert passes_mark(every, samples, samples + step, phase=phase) == bool(inside)
        samples += step
